"""What the engine holds an answer to, once it is known where the answer begins: constraints count behind the reasoning.

Also what strict tools ask for where they may be called. Both are structural tags in xgrammar's form; an engine that
does not know it gets the constraint as it is, from the first token on, and no strict tools.
"""

from typing import Any

import msgspec

from apiserver.pipeline.parsers.call_tags import MOST_SPACES, Format, strict_calls
from apiserver.pipeline.parsers.names import call_format, is_forced, is_harmony, reasoning_tags
from apiserver.pipeline.parsers.parser import ReasoningTags
from apiserver.pipeline.parsers.thinking import Start, start_of
from apiserver.requests import Structure
from engine_bridge.wire import Capabilities, SamplingParams

_SPACES: Format = {"type": "regex", "pattern": "[ \\t\\r\\n]{0,8}"}
"""What models write between their reasoning and the answer."""


def constrain(
    params: SamplingParams, structure: Structure, prompt_end: str, capabilities: Capabilities
) -> SamplingParams:
    """`prompt_end` is how the prompt ends, special tokens included. A structural tag of the client's stays as it is."""
    if not capabilities.tag_formats or params.structural_tag is not None:
        return params
    asked = _asked(params)
    body = _strict(structure) if asked is None else asked
    if body is None:
        return params
    tags, start = _reasoning(structure, prompt_end, is_strict=asked is None)
    if tags is not None and start is not Start.BEHIND:
        spaces = () if asked is None else (_SPACES,)
        tag = _behind(tags, start, [*spaces, body])
    elif asked is None:
        tag = body
    else:
        return params
    text = msgspec.json.encode({"type": "structural_tag", "format": tag}).decode()
    return msgspec.structs.replace(params, json_schema=None, regex=None, grammar=None, structural_tag=text)


def _asked(params: SamplingParams) -> Format | None:
    if params.json_schema is not None:
        schema = msgspec.json.decode(params.json_schema)
        return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MOST_SPACES}
    if params.regex is not None:
        return {"type": "regex", "pattern": params.regex}
    if params.grammar is not None:
        return {"type": "grammar", "grammar": params.grammar}
    return None


def _strict(structure: Structure) -> Format | None:
    name = structure.tool_calls
    if name is None or is_harmony(name) or is_forced(name):
        return None
    return strict_calls(call_format(name), structure.tools)


def _reasoning(structure: Structure, prompt_end: str, *, is_strict: bool) -> tuple[ReasoningTags | None, Start]:
    """None: there is none to wait for."""
    if structure.reasoning is None or is_harmony(structure.reasoning):
        return None, Start.BEHIND
    tags = reasoning_tags(structure.reasoning)
    if is_strict and tags.interrupted_by_calls:
        return None, Start.BEHIND  # a call in the reasoning is a call
    return tags, start_of(tags, structure.thinking, prompt_end)


def _behind(tags: ReasoningTags, start: Start, elements: list[Format]) -> Format:
    reasoning: dict[str, Any] = {"type": "tag", "content": {"type": "any_text"}, "end": tags.end}
    if start is Start.INSIDE:
        return {"type": "sequence", "elements": [reasoning | {"begin": ""}, *elements]}
    thought = {"type": "sequence", "elements": [reasoning | {"begin": tags.start}, *elements]}
    return {"type": "or", "elements": [thought, elements[-1]]}

"""An answer's text → content, reasoning and tool calls, as it comes. `make_parser` is the way in."""

from collections.abc import Mapping
from typing import Any

from apiserver.pipeline.parsers.harmony import MARKERS, read_harmony
from apiserver.pipeline.parsers.names import call_format, is_forced, is_harmony, reasoning_tags
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import AnswerParser, CallFormat, ReadingParser, ReasoningTags, read_answer
from apiserver.pipeline.parsers.source import Source
from apiserver.pipeline.parsers.thinking import Start, start_of
from apiserver.requests import Structure


def make_parser(structure: Structure, prompt_end: str = "") -> AnswerParser:
    """The parser of one answer. `prompt_end` is how the prompt ends, special tokens included: templates open (or close)
    the reasoning there. Raises UnknownParser."""
    source, output = Source(), Output(parallel=structure.parallel)
    forced = is_forced(structure.tool_calls)
    if is_harmony(structure.tool_calls) or (is_harmony(structure.reasoning) and not forced):
        reading = read_harmony(
            source, output, reasons=structure.reasoning is not None, calls=structure.tool_calls is not None
        )
        return ReadingParser(source, output, reading, MARKERS)
    reasoning = structure.reasoning
    tags = None if reasoning is None or is_harmony(reasoning) else reasoning_tags(reasoning)
    calls = None if structure.tool_calls is None else call_format(structure.tool_calls)(_schemas(structure))
    inside = tags is not None and start_of(tags, structure.thinking, prompt_end) is Start.INSIDE
    reading = read_answer(source, output, tags, calls, inside=inside)
    return ReadingParser(source, output, reading, _markers(tags, calls))


def _markers(tags: ReasoningTags | None, calls: CallFormat | None) -> tuple[str, ...]:
    reasoning = () if tags is None else (tags.start, tags.end)
    return reasoning if calls is None else (*reasoning, *calls.marks.openers, *calls.marks.inner)


def _schemas(structure: Structure) -> Mapping[str, Mapping[str, Any]]:
    """Each tool's parameters."""
    functions = [tool["function"] for tool in structure.tools]
    return {function["name"]: function.get("parameters") or {} for function in functions}

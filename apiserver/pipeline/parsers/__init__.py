"""An answer's text → content, reasoning and tool calls, as it comes. `make_parser` is the way in."""

from collections.abc import Mapping
from typing import Any

from apiserver.pipeline.parsers.harmony import MARKERS, read_harmony
from apiserver.pipeline.parsers.names import call_format, is_harmony, reasoning_tags
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import AnswerParser, CallFormat, ReadingParser, ReasoningTags, read_answer
from apiserver.pipeline.parsers.source import Source
from apiserver.requests import Structure


def make_parser(structure: Structure, prompt_end: str = "") -> AnswerParser:
    """The parser of one answer. `prompt_end` is how the prompt ends, special tokens included: templates open (or close)
    the reasoning there. Raises UnknownParser."""
    source, output = Source(), Output(parallel=structure.parallel)
    if is_harmony(structure.tool_calls) or is_harmony(structure.reasoning):
        reading = read_harmony(
            source, output, reasons=structure.reasoning is not None, calls=structure.tool_calls is not None
        )
        return ReadingParser(source, output, reading, MARKERS)
    tags = None if structure.reasoning is None else reasoning_tags(structure.reasoning)
    calls = None if structure.tool_calls is None else call_format(structure.tool_calls)(_schemas(structure))
    inside = tags is not None and _begins_inside(tags, structure.thinking, prompt_end)
    reading = read_answer(source, output, tags, calls, inside=inside)
    return ReadingParser(source, output, reading, _markers(tags, calls))


def _begins_inside(tags: ReasoningTags, thinking: bool | None, prompt_end: str) -> bool:
    """The prompt knows best: whether it ends inside the tags; else the model's habits, unless it was told not to."""
    opened, closed = prompt_end.rfind(tags.start), prompt_end.rfind(tags.end)
    if opened > closed:
        return not prompt_end[opened + len(tags.start) :].strip()
    if closed >= 0 and not prompt_end[closed + len(tags.end) :].strip():
        return False
    return tags.forced and thinking is not False


def _markers(tags: ReasoningTags | None, calls: CallFormat | None) -> tuple[str, ...]:
    reasoning = () if tags is None else (tags.start, tags.end)
    return reasoning if calls is None else (*reasoning, *calls.marks.openers, *calls.marks.inner)


def _schemas(structure: Structure) -> Mapping[str, Mapping[str, Any]]:
    """Each tool's parameters."""
    functions = [tool["function"] for tool in structure.tools]
    return {function["name"]: function.get("parameters") or {} for function in functions}

"""Kimi K2: sections of calls, with the tool's name in the call's id, functions.NAME:NUMBER."""

from collections.abc import Mapping
from typing import Any, ClassVar

from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import Marks
from apiserver.pipeline.parsers.sections import SectionMarks, read_section
from apiserver.pipeline.parsers.source import Markers, Reading, Source

_CALLS, _CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = Markers(("<|tool_call_argument_begin|>",))
_SECTION = SectionMarks(_CALL, (_CALL_END,), _CALLS_END)
_MOST_ID = 256


class Kimi:
    marks: ClassVar[Marks] = Marks((_CALLS,), inner=(_CALLS_END, _CALL, _CALL_END, *_ARGUMENTS.words))

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        pass

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        return read_section(source, output, opener, _SECTION, _name)


def _name(source: Source) -> Reading[str]:
    """The tool's name out of the call's id, and everything up to the arguments; "" if it is none."""
    named = yield from source.collect(_ARGUMENTS, _MOST_ID)
    yield from source.spaces()
    if named is None or not (yield from source.next_is("{")):
        return ""
    call_id = named[0].strip().removeprefix("functions.")
    name, _, _ = call_id.rpartition(":")
    return name or call_id

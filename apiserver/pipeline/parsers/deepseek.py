"""DeepSeek V3, R1 and V3.1: sections of calls, whose arguments stand in a fence (V3, R1) or bare (V3.1)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import Marks
from apiserver.pipeline.parsers.sections import SectionMarks, read_section
from apiserver.pipeline.parsers.source import Markers, Reading, Source

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_SECTION = SectionMarks(_CALL, ("```", _CALL_END), _CALLS_END)
_HEAD_ENDS = Markers((_SEPARATOR,))
_LINE = Markers(("\n",))
_MOST_HEAD = 256


class DeepSeek:
    marks: ClassVar[Marks] = Marks((_CALLS,), inner=(_CALLS_END, _CALL, _CALL_END, _SEPARATOR))

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        pass

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        return read_section(source, output, opener, _SECTION, _name)


def _name(source: Source) -> Reading[str]:
    """The tool's name, and everything up to the arguments; "" if it is none."""
    head = yield from source.collect(_HEAD_ENDS, _MOST_HEAD)
    if head is None:
        return ""
    name = head[0].strip()
    yield from source.spaces()
    if not (yield from source.next_is("{")):
        line = yield from source.collect(_LINE, _MOST_HEAD)
        name = "" if line is None else line[0].strip()
        yield from source.spaces()
        yield from source.takes("```json")
        yield from source.spaces()
    return name if name and (yield from source.next_is("{")) else ""

"""DeepSeek V3, R1 and V3.1: sections of calls, whose arguments stand in a fence (V3, R1) or bare (V3.1)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from apiserver.pipeline.parsers.json_text import copy_json
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import Marks
from apiserver.pipeline.parsers.source import Markers, Reading, Source

_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_HEAD_ENDS = Markers((_SEPARATOR,))
_LINE = Markers(("\n",))
_MOST_HEAD = 256


class DeepSeek:
    marks: ClassVar[Marks] = Marks((_CALLS,), inner=(_CALLS_END, _CALL, _CALL_END, _SEPARATOR))

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        pass

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        source.record(opener)
        while True:
            yield from source.spaces()
            tag = yield from source.takes(_CALL, _CALLS_END)
            if tag != _CALL:
                break
            name = yield from self._name(source)
            if name is None:
                tag = ""
                break
            source.forget()
            output.begin(name)
            if not (yield from copy_json(source, output.arguments)):
                return
            yield from source.spaces()
            yield from source.takes("```")
            yield from source.spaces()
            yield from source.takes(_CALL_END)
            source.record("")
        if tag:
            source.forget()
        else:
            output.content(source.recorded())

    def _name(self, source: Source) -> Reading[str | None]:
        """The tool's name, and everything up to the arguments."""
        head = yield from source.collect(_HEAD_ENDS, _MOST_HEAD)
        if head is None:
            return None
        name = head[0].strip()
        yield from source.spaces()
        if not (yield from source.next_is("{")):
            line = yield from source.collect(_LINE, _MOST_HEAD)
            name = "" if line is None else line[0].strip()
            yield from source.spaces()
            yield from source.takes("```json")
            yield from source.spaces()
        return name if name and (yield from source.next_is("{")) else None

"""GLM 4.5 to 5: <tool_call>f <arg_key>key</arg_key><arg_value>value</arg_value></tool_call>."""

from collections.abc import Mapping
from typing import Any, ClassVar

from apiserver.pipeline.parsers.arguments import ArgumentWriter
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import Marks
from apiserver.pipeline.parsers.source import Markers, Reading, Source

_END = "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_AFTER_NAME = Markers((_KEY, _END, "\n"))
_MOST_NAME = 256


class Glm:
    marks: ClassVar[Marks] = Marks(("<tool_call>",), inner=(_END, _KEY, _KEY_END, _VALUE, _VALUE_END))

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        source.record(opener)
        yield from source.spaces()
        named = yield from source.collect(_AFTER_NAME, _MOST_NAME)
        if named is not None and named[1] == "\n":
            yield from source.spaces()
            named = named[0], (yield from source.takes(_KEY, _END))
        if named is None or not named[0].strip() or not named[1]:
            output.content(source.recorded())
            return
        source.forget()
        writer = ArgumentWriter(output, named[0].strip(), self._tools)
        tag = named[1]
        while tag == _KEY and (yield from self._parameter(source, output, writer)):
            yield from source.spaces()
            tag = yield from source.takes(_KEY, _END)
        if tag == _END or (not tag and (yield from source.peek())):
            writer.close()

    def _parameter(self, source: Source, output: Output, writer: ArgumentWriter) -> Reading[bool]:
        source.record(_KEY)
        key = yield from source.collect(Markers((_KEY_END,)), _MOST_NAME)
        yield from source.spaces()
        if key is None or not (yield from source.takes(_VALUE)):
            output.content(source.recorded())
            return False
        source.forget()
        return (yield from writer.read_value(source, key[0].strip(), _VALUE_END, (_KEY, _END)))

"""Qwen 3 Coder and Qwen 3.5 on: <tool_call><function=f><parameter=key>value</parameter></function></tool_call>."""

from collections.abc import Mapping
from typing import Any, ClassVar

from apiserver.pipeline.parsers.arguments import ArgumentWriter
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import Marks
from apiserver.pipeline.parsers.source import Markers, Reading, Source

_FUNCTION, _PARAMETER = "<function=", "<parameter="
_END = "</tool_call>"
_AFTER_VALUE = (_PARAMETER, "</function>", _END)
_CLOSE = Markers((">",))
_MOST_NAME = 256


class QwenXml:
    marks: ClassVar[Marks] = Marks(("<tool_call>", _FUNCTION), inner=(_END,))

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        source.record(opener)
        if opener != _FUNCTION:
            yield from source.spaces()
            opener = yield from source.takes(_FUNCTION)
        named = (yield from source.collect(_CLOSE, _MOST_NAME)) if opener else None
        if named is None or not named[0].strip():
            output.content(source.recorded())
            return
        source.forget()
        writer = ArgumentWriter(output, named[0].strip(), self._tools, between_line_breaks=True)
        tag = yield from self._parameters(source, output, writer)
        if tag == "</function>":
            yield from source.spaces()
            yield from source.takes(_END)

    def _parameters(self, source: Source, output: Output, writer: ArgumentWriter) -> Reading[str]:
        """Up to the tag that ends them."""
        while True:
            yield from source.spaces()
            tag = yield from source.takes(*_AFTER_VALUE)
            if tag != _PARAMETER:
                if (yield from source.peek()) or tag:
                    writer.close()
                return tag
            source.record(tag)
            named = yield from source.collect(_CLOSE, _MOST_NAME)
            if named is None:
                output.content(source.recorded())
                return ""
            source.forget()
            if not (yield from writer.read_value(source, named[0].strip(), "</parameter>", _AFTER_VALUE)):
                return ""

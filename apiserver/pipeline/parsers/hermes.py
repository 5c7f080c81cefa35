"""Hermes, Qwen 2.5 and Qwen 3: <tool_call>{"name": "f", "arguments": {...}}</tool_call>."""

from collections.abc import Mapping
from typing import Any, ClassVar

from apiserver.pipeline.parsers.call_object import CallObject
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import Marks
from apiserver.pipeline.parsers.source import Reading, Source

_END = "</tool_call>"


class Hermes:
    marks: ClassVar[Marks] = Marks(("<tool_call>",), inner=(_END,))

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        pass

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        source.record(opener)
        yield from source.spaces()
        if not (yield from CallObject(source, output).read()):
            output.content(source.recorded())
            return
        yield from source.spaces()
        yield from source.takes(_END)

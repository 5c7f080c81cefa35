"""DeepSeek V3.2 on, MiniMax M2: sections of <invoke name="f"><parameter name="key">value</parameter></invoke>."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from apiserver.pipeline.parsers.arguments import ArgumentWriter
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import Marks
from apiserver.pipeline.parsers.source import Markers, Reading, Source

_NAME = re.compile(r'name="([^"]+)"|name=([^\s"/>]+)')
_STRING = re.compile(r'string="(true|false)"')
_CLOSE = Markers((">",))
_MOST_HEAD = 1024


class InvokeTags:
    """The reading; families differ in how they spell the tags."""

    marks: ClassVar[Marks]
    prefixes: ClassVar[tuple[str, ...]]
    """What stands before the words invoke and parameter."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools
        self._invokes = tuple(f"<{prefix}invoke " for prefix in self.prefixes)
        self._invoke_ends = tuple(f"</{prefix}invoke>" for prefix in self.prefixes)
        self._parameters = tuple(f"<{prefix}parameter " for prefix in self.prefixes)

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        closer = "</" + opener[1:]
        source.record(opener)
        while True:
            yield from source.spaces()
            tag = yield from source.takes(*self._invokes, closer)
            if tag == closer:
                source.forget()
                return
            named = (yield from self._head(source)) if tag in self._invokes else None
            if named is None:
                output.content(source.recorded())
                return
            source.forget()
            name, is_empty, _ = named
            writer = ArgumentWriter(output, name, self._tools)
            if is_empty:
                writer.close()
            elif not (yield from self._read_parameters(source, output, writer, closer)):
                return
            source.record("")

    def _read_parameters(self, source: Source, output: Output, writer: ArgumentWriter, closer: str) -> Reading[bool]:
        """Up to the end of the invocation. False where it was broken off."""
        after_value = (*self._parameters, *self._invoke_ends, closer)
        while True:
            yield from source.spaces()
            tag = yield from source.takes(*self._parameters, *self._invoke_ends)
            if tag not in self._parameters:
                if tag or (yield from source.peek()):
                    writer.close()
                return True
            source.record(tag)
            named = yield from self._head(source)
            if named is None:
                output.content(source.recorded())
                return False
            source.forget()
            name, _, is_string = named
            end = "</" + tag[1:-1] + ">"
            if not (yield from writer.read_value(source, name, end, after_value, is_string=is_string)):
                return False

    def _head(self, source: Source) -> Reading[tuple[str, bool, bool | None] | None]:
        """A start tag's name, whether it ends itself, and what it says of being a string."""
        head = yield from source.collect(_CLOSE, _MOST_HEAD)
        named = None if head is None else _NAME.search(head[0])
        if head is None or named is None:
            return None
        is_string = _STRING.search(head[0])
        return named[1] or named[2], head[0].endswith("/"), None if is_string is None else is_string[1] == "true"


class DeepSeekMarkup(InvokeTags):
    """DeepSeek V3.2, V4 and V4.1, which call it DSML."""

    marks: ClassVar[Marks] = Marks(
        ("<｜DSML｜function_calls>", "<｜DSML｜tool_calls>", "<｜DSML｜ calls>"), inner=("｜DSML｜",)
    )
    prefixes = ("｜DSML｜", "｜DSML｜ ")


class MiniMax(InvokeTags):
    marks: ClassVar[Marks] = Marks(("<minimax:tool_call>",), inner=("</minimax:tool_call>",))
    prefixes = ("",)

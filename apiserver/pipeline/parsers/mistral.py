"""Mistral: [TOOL_CALLS] before a JSON array of calls, or (from v11 on) before each call's name and arguments."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from apiserver.pipeline.parsers.call_object import read_call_objects
from apiserver.pipeline.parsers.json_text import copy_json
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import Marks
from apiserver.pipeline.parsers.source import Reading, Source

_ARGUMENTS, _CALL_ID = "[ARGS]", "[CALL_ID]"
_WORD = re.compile(r"[\w.\-]*")
_MOST_NAME = 256


class Mistral:
    marks: ClassVar[Marks] = Marks(("[TOOL_CALLS]",), inner=(_ARGUMENTS, _CALL_ID))

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        pass

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        source.record(opener)
        yield from source.spaces()
        if (yield from source.takes("[")):
            if (yield from read_call_objects(source, output, source.recorded(), (",",))):
                yield from source.spaces()
                yield from source.takes("]")
        elif (yield from source.next_is("{")):
            yield from read_call_objects(source, output, source.recorded(), (",",))
        else:
            yield from self._read_named(source, output)

    def _read_named(self, source: Source, output: Output) -> Reading[None]:
        parts: list[str] = []
        yield from source.run_of(_WORD, parts.append)
        name = "".join(parts)
        if (yield from source.takes(_CALL_ID)):
            yield from source.run_of(_WORD, parts.append)
        yield from source.takes(_ARGUMENTS)
        yield from source.spaces()
        if not 0 < len(name) <= _MOST_NAME or not (yield from source.next_is("{")):
            output.content(source.recorded())
            return
        source.forget()
        output.begin(name)
        yield from copy_json(source, output.arguments)

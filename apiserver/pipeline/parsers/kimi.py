"""Kimi K2: sections of calls, with the tool's name in the call's id, functions.NAME:NUMBER."""

from collections.abc import Mapping
from typing import Any, ClassVar

from apiserver.pipeline.parsers.json_text import copy_json
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import Marks
from apiserver.pipeline.parsers.source import Markers, Reading, Source

_CALLS, _CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = Markers(("<|tool_call_argument_begin|>",))
_MOST_ID = 256


class Kimi:
    marks: ClassVar[Marks] = Marks((_CALLS,), inner=(_CALLS_END, _CALL, _CALL_END, *_ARGUMENTS.words))

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        pass

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        source.record(opener)
        while True:
            yield from source.spaces()
            tag = yield from source.takes(_CALL, _CALLS_END)
            if tag != _CALL:
                break
            named = yield from source.collect(_ARGUMENTS, _MOST_ID)
            yield from source.spaces()
            name = "" if named is None else _name(named[0])
            if not name or not (yield from source.next_is("{")):
                tag = ""
                break
            source.forget()
            output.begin(name)
            if not (yield from copy_json(source, output.arguments)):
                return
            yield from source.spaces()
            yield from source.takes(_CALL_END)
            source.record("")
        if tag:
            source.forget()
        else:
            output.content(source.recorded())


def _name(call_id: str) -> str:
    name, _, _ = call_id.strip().removeprefix("functions.").rpartition(":")
    return name or call_id.strip().removeprefix("functions.")

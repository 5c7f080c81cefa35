"""Llama 4 and others that call tools in Python: [f(a=1, b="x"), g()].

A call's arguments are told when the call is there: until then Python's text is not JSON. What is no call of a known
tool is an answer that begins with a bracket.
"""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.parser import Marks
from apiserver.pipeline.parsers.python_text import node_to_json
from apiserver.pipeline.parsers.source import Reading, Source

_START, _END = "<|python_start|>", "<|python_end|>"
_NAME = re.compile(r"[\w.\-]*")
_CODE = re.compile(r"[^\"'()\[\]{}\\]*")
_QUOTED = {"'": re.compile(r"[^'\\]*"), '"': re.compile(r'[^"\\]*')}
_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_MOST_NAME = 256
_MOST_DEPTH = 100  # Python's own parser takes no more either


class Pythonic:
    marks: ClassVar[Marks] = Marks((_START,), at_start=("[",), inner=(_END,))

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools

    def read(self, source: Source, output: Output, opener: str) -> Reading[None]:
        source.record(opener)
        yield from source.spaces()
        if not (yield from source.takes("[")):
            output.content(source.recorded())
            return
        while True:
            call = yield from self._read_call(source)
            if call is None:
                output.content(source.recorded())
                return
            source.forget()
            output.begin(call[0])
            output.arguments(call[1])
            yield from source.spaces()
            source.record("")
            if not (yield from source.takes(",")):
                break
        yield from source.takes("]")
        yield from source.spaces()
        yield from source.takes(_END)
        source.forget()

    def _read_call(self, source: Source) -> Reading[tuple[str, str] | None]:
        parts: list[str] = []
        yield from source.spaces()
        yield from source.run_of(_NAME, parts.append)
        name = "".join(parts)
        if name not in self._tools or not (yield from source.next_is("(")):
            return None
        parts = ["f"]
        if not (yield from _bracketed(source, parts)):
            return None
        arguments = _arguments("".join(parts))
        return None if arguments is None else (name, arguments)


def _bracketed(source: Source, parts: list[str]) -> Reading[bool]:
    """From an opening bracket to the one that closes it, strings jumped over."""
    closers: list[str] = []
    while True:
        yield from source.run_of(_CODE, parts.append)
        char = yield from source.peek()
        if not char or len(closers) > _MOST_DEPTH:
            return False
        parts.append(source.one())
        if char in _CLOSERS:
            closers.append(_CLOSERS[char])
        elif char in _QUOTED:
            if not (yield from _quoted(source, char, parts)):
                return False
        elif not closers or char != closers.pop():
            return False
        if not closers:
            return True


def _quoted(source: Source, quote: str, parts: list[str]) -> Reading[bool]:
    while True:
        yield from source.run_of(_QUOTED[quote], parts.append)
        char = yield from source.peek()
        if not char:
            return False
        parts.append(source.one())
        if char == quote:
            return True
        if (yield from source.peek()):
            parts.append(source.one())


def _arguments(call: str) -> str | None:
    """The keyword arguments of `f(...)` as a JSON object; None if they are no literals."""
    try:
        node = cast(ast.Call, ast.parse(call, mode="eval").body)
        if node.args or any(keyword.arg is None for keyword in node.keywords):
            return None
        pairs = [
            f"{json.dumps(keyword.arg, ensure_ascii=False)}: {node_to_json(keyword.value)}" for keyword in node.keywords
        ]
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return "{" + ", ".join(pairs) + "}"

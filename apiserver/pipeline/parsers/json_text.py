"""JSON that arrives in pieces: copied as the model wrote it, and checked on the way."""

import json
import re

from apiserver.pipeline.parsers.source import SPACES, Emit, Reading, Source

_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_ESCAPED = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")


def copy_json(source: Source, emit: Emit) -> Reading[bool]:
    """Copy one JSON value to `emit`. False where it stops being one; what was read until there has been copied.

    In strings, what models get wrong is put right: line breaks and backslashes that should have been escaped.
    """
    closers: list[str] = []  # of what is open; a stack of our own, since an answer may be nested as deep as it likes
    while True:
        char = yield from _next(source, emit)
        if char == "{" or char == "[":
            emit(source.one())
            closers.append("}" if char == "{" else "]")
            if (yield from _next(source, emit)) != closers[-1]:
                if char == "{" and not (yield from _key(source, emit)):
                    return False
                continue
        elif not (yield from _scalar(source, emit)):
            return False
        while closers:
            char = yield from _next(source, emit)
            if char == closers[-1]:
                emit(source.one())
                closers.pop()
            elif char != ",":
                return False
            else:
                emit(source.one())
                if closers[-1] == "}" and not (yield from _key(source, emit)):
                    return False
                break
        else:
            return True


def read_string(source: Source) -> Reading[str | None]:
    """A JSON string's value; None if there is none."""
    parts: list[str] = []
    if not (yield from _string(source, parts.append)):
        return None
    return usable(json.loads("".join(parts)))


def usable(text: str) -> str:
    """Without lone surrogates, which have no UTF-8 form."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _next(source: Source, emit: Emit) -> Reading[str]:
    yield from source.run_of(SPACES, emit)
    return (yield from source.peek())


def _key(source: Source, emit: Emit) -> Reading[bool]:
    """A key and its colon."""
    yield from source.run_of(SPACES, emit)
    if not (yield from _string(source, emit)):
        return False
    if (yield from _next(source, emit)) != ":":
        return False
    emit(source.one())
    return True


def _scalar(source: Source, emit: Emit) -> Reading[bool]:
    if (yield from source.peek()) == '"':
        return (yield from _string(source, emit))
    parts: list[str] = []
    yield from source.run_of(_WORD, parts.append)
    word = "".join(parts)
    emit(word)
    return _SCALAR.fullmatch(word) is not None


def _string(source: Source, emit: Emit) -> Reading[bool]:
    if not (yield from source.takes('"')):
        return False
    emit('"')
    while True:
        yield from source.run_of(_PLAIN, emit)
        char = yield from source.peek()
        if not char:
            return False
        source.one()
        if char == '"':
            emit(char)
            return True
        if char == "\\":
            yield from _escape(source, emit)
        else:
            emit(json.dumps(char)[1:-1])


def _escape(source: Source, emit: Emit) -> Reading[None]:
    """What follows a backslash; if that is no escape, the backslash stands for itself."""
    char = yield from source.peek()
    if char in _ESCAPED:
        emit("\\" + source.one())
    elif char != "u":
        emit("\\\\")
    else:
        text = source.one()
        while len(text) < 5 and (yield from source.peek()) in _HEX:
            text += source.one()
        emit(("\\" if len(text) == 5 else "\\\\") + text)

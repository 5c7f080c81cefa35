"""Tool calls written as JSON objects: {"name": "f", "arguments": {...}}, in whatever order the keys come."""

import json
from collections.abc import Container

from apiserver.pipeline.parsers.json_text import copy_json, read_string
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.source import Reading, Source

_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("type", "id")


class CallObject:
    """One call. `known` are the only names that it may have, where it would be no call otherwise; such an object may
    have no strange keys either."""

    def __init__(self, source: Source, output: Output, known: Container[str] | None = None) -> None:
        self._source = source
        self._output = output
        self._known = known
        self._name: str | None = None
        self._held: list[str] = []  # arguments that came before the name
        self._began = False

    def read(self) -> Reading[bool]:
        """Whether there was a call. Where there was none, nothing has been told, and the source has its record."""
        source = self._source
        if not (yield from source.takes("{")):
            return False
        whole = yield from self._members()
        if self._name is not None and not self._began and whole:
            self._begin("".join(self._held) or "{}")
        return self._began

    def _members(self) -> Reading[bool]:
        """The object's members and its end. False where it is broken; once the arguments are told that is no matter."""
        source = self._source
        yield from source.spaces()
        if (yield from source.takes("}")):
            return True
        while True:
            yield from source.spaces()
            key = yield from read_string(source)
            yield from source.spaces()
            if key is None or not (yield from source.takes(":")):
                return False
            yield from source.spaces()
            if not (yield from self._member(key)):
                return False
            yield from source.spaces()
            separator = yield from source.takes(",", "}")
            if separator != ",":
                return separator == "}"

    def _member(self, key: str) -> Reading[bool]:
        if key == "name":
            return (yield from self._read_name())
        if key in _ARGUMENTS:
            return (yield from self._read_arguments())
        if self._known is not None and key not in _OTHERS:
            return False
        return (yield from copy_json(self._source, _drop))

    def _read_name(self) -> Reading[bool]:
        name = yield from read_string(self._source)
        if not name or self._name is not None or (self._known is not None and name not in self._known):
            return False
        self._name = name
        return True

    def _read_arguments(self) -> Reading[bool]:
        source = self._source
        if self._began or self._held:
            return False
        opening = yield from source.next_is("{", '"', "null")
        if opening == "{" and self._name is not None:
            self._begin("")
            return (yield from copy_json(source, self._output.arguments))
        if opening == "{":
            return (yield from copy_json(source, self._held.append))
        if opening == "null":
            yield from source.takes("null")
            return True
        text = yield from read_string(source)
        if text is None or not _is_object(text):
            return False
        self._held.append(text)
        return True

    def _begin(self, arguments: str) -> None:
        assert self._name is not None
        self._source.forget()
        self._output.begin(self._name)
        self._output.arguments(arguments)
        self._began = True


def read_call_objects(
    source: Source, output: Output, opener: str, separators: tuple[str, ...], known: Container[str] | None = None
) -> Reading[bool]:
    """One call or more, with separators between them. What is none is content, from the opener on."""
    found = False
    while True:
        source.record(opener)
        yield from source.spaces()
        if not (yield from CallObject(source, output, known).read()):
            output.content(source.recorded())
            return found
        found = True
        yield from source.spaces()
        opener = yield from source.takes(*separators)
        if not opener:
            return True


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _drop(text: str) -> None:
    pass

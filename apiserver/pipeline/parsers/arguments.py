"""Arguments that a model writes as text, one tag a parameter: what they are as JSON is for the tool's schema to say."""

import json
from collections.abc import Mapping
from typing import Any, cast

from apiserver.pipeline.parsers.json_text import usable
from apiserver.pipeline.parsers.output import Output
from apiserver.pipeline.parsers.python_text import python_to_json
from apiserver.pipeline.parsers.source import Reading, Source

_KINDS: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_STRING = frozenset(("string",))
_MOST_DEPTH = 8  # of anyOf inside anyOf


class ArgumentWriter:
    """Writes one call's arguments as a JSON object, parameter by parameter; a string goes out as it comes."""

    def __init__(
        self,
        output: Output,
        name: str,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        between_line_breaks: bool = False,
    ) -> None:
        """`between_line_breaks`: one before and one after each value belong to the format."""
        self._output = output
        self._between_line_breaks = between_line_breaks
        properties = tools.get(name, {}).get("properties")
        self._properties: Mapping[str, Any] = properties if isinstance(properties, dict) else {}
        self._written: set[str] = set()
        output.begin(name)

    def read_value(
        self, source: Source, key: str, end: str, followers: tuple[str, ...], *, is_string: bool | None = None
    ) -> Reading[bool]:
        """One parameter's value, up to its end tag (which stands before one of the followers). `is_string` is what the
        format itself says of it. False where the text ended first."""
        kinds = kinds_of(self._properties.get(key))
        if is_string or (is_string is None and kinds == _STRING):
            self._key(key)
            self._output.arguments('"')
            value = _StringValue(self._output, between_line_breaks=self._between_line_breaks)
            whole = yield from source.until_followed(end, followers, value.emit)
            if whole:
                self._output.arguments('"')
            return whole
        parts: list[str] = []
        whole = yield from source.until_followed(end, followers, parts.append)
        if whole:
            text = "".join(parts)
            if self._between_line_breaks:
                text = text.removeprefix("\n").removesuffix("\n")
            self._key(key)
            self._output.arguments(to_json(text, frozenset() if is_string is False else kinds))
        return whole

    def close(self) -> None:
        """Every parameter is there."""
        self._output.arguments("}" if self._written else "{}")

    def _key(self, key: str) -> None:
        """A parameter that comes twice would make an object of which everybody reads another half: it gets a name that
        says so."""
        name = key
        while name in self._written:
            name += "_"
        separator = ", " if self._written else "{"
        self._written.add(name)
        self._output.arguments(f"{separator}{json.dumps(name, ensure_ascii=False)}: ")


class _StringValue:
    """A string's text as it comes."""

    def __init__(self, output: Output, *, between_line_breaks: bool) -> None:
        self._output = output
        self._strips = between_line_breaks
        self._at_start = between_line_breaks
        self._break = ""  # held back: it may be the last

    def emit(self, text: str) -> None:
        if self._at_start:
            self._at_start = False
            text = text.removeprefix("\n")
        if self._strips and text:
            text = self._break + text
            self._break = "\n" if text.endswith("\n") else ""
            text = text.removesuffix("\n")
        self._output.arguments(json.dumps(text, ensure_ascii=False)[1:-1])


def kinds_of(schema: Any, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says so plainly; none is "anything"."""
    if not isinstance(schema, dict) or depth > _MOST_DEPTH:
        return frozenset()
    fields = cast(dict[str, Any], schema)
    kind = fields.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list):
        return frozenset(str(one) for one in cast(list[Any], kind))
    values = fields.get("enum")
    if isinstance(values, list):
        return frozenset(_kind(value) for value in cast(list[Any], values))
    for name in ("anyOf", "oneOf"):
        options = fields.get(name)
        if isinstance(options, list):
            kinds = [kinds_of(option, depth + 1) for option in cast(list[Any], options)]
            return frozenset[str]().union(*kinds) if all(kinds) else frozenset()
    return frozenset()


def to_json(text: str, kinds: frozenset[str]) -> str:
    """The text of a parameter as JSON: of a kind that its schema allows where it can be read so, else a string."""
    word = text.strip()
    for candidate in (word, _python(word)):
        if candidate is not None and _fits(candidate, kinds):
            return candidate
    return json.dumps(usable(text), ensure_ascii=False)


def _python(word: str) -> str | None:
    """Python's spelling of a value: True, None, {'a': 1}."""
    return python_to_json(word) if word[:1] in "{[(TFN" else None


def _fits(text: str, kinds: frozenset[str]) -> bool:
    try:
        value: Any = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    if not kinds:
        return True
    kind = _kind(value)
    if kind == "string":
        return False  # quotes belong to a string that is written as text
    return (
        kind in kinds
        or (kind == "integer" and "number" in kinds)
        or (kind == "number" and "integer" in kinds and float(value).is_integer())
    )


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "null")


def _refuse(constant: str) -> Any:
    raise ValueError(constant)

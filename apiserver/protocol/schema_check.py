"""Is this a JSON schema that an engine can hold an answer to? Asked before the engine sees it, and answered for good.

Unknown keywords mean nothing, as JSON Schema has it. What is refused: what is no schema, references that lead nowhere,
out of the document or in a circle, and more of anything than a grammar should be made of.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import msgspec

from apiserver.errors import InvalidRequest, shown
from apiserver.protocol.regex_check import regex_fault

_MOST_CHARACTERS = 256 * 1024
_MOST_CACHED = 64 * 1024  # characters of one schema whose verdict is remembered
_MOST_NODES = 5000
_MOST_DEPTH = 64
_MOST_REPEATS = 100_000
_MOST_ENUM = 10_000
_TYPES = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems")
_IN_PLACE = ("allOf", "anyOf", "oneOf")
_SCHEMA = (
    "items",
    "additionalItems",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "multipleOf")

Node = dict[str, Any]


class _Fault(ValueError):
    """What is wrong, and where."""


def check_schema(text: str, param: str) -> None:
    """`text` is a JSON object. Raises InvalidRequest naming the field and the place in the schema."""
    fault = _remembered(text) if len(text) <= _MOST_CACHED else schema_fault(text)
    if fault is not None:
        raise InvalidRequest(f"{param} is no usable JSON schema: {fault}.", param=param)


def schema_fault(text: str) -> str | None:
    """What is wrong with it; None if nothing is."""
    if len(text) > _MOST_CHARACTERS:
        return f"it has {len(text)} characters, and at most {_MOST_CHARACTERS} are allowed"
    try:
        root: Any = msgspec.json.decode(text)
        _check_references(root, _nodes(root))
    except _Fault as fault:
        return str(fault)
    return None


_remembered = functools.lru_cache(maxsize=256)(schema_fault)


def _nodes(root: Any) -> list[tuple[str, Node]]:
    """Every schema of the document with its place, each checked by itself."""
    found: list[tuple[str, Node]] = []
    waiting: list[tuple[str, Any, int]] = [("$", root, 0)]
    while waiting:
        place, schema, depth = waiting.pop()
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            raise _Fault(f"{place} must be a schema (an object, true or false)")
        node = cast(Node, schema)
        found.append((place, node))
        if len(found) > _MOST_NODES or depth > _MOST_DEPTH:
            raise _Fault(f"it has more than {_MOST_NODES} parts, or is nested more than {_MOST_DEPTH} deep")
        for key in _CHECKS.keys() & node.keys():
            fault = _CHECKS[key](node[key])
            if fault is not None:
                raise _Fault(f"{place}.{key} {fault}")
        waiting += [(where, part, depth + 1) for where, part in _parts(place, node)]
    return found


def _parts(place: str, node: Node) -> Iterator[tuple[str, Any]]:
    """The schemas that one schema holds."""
    for key in node:
        value = node[key]
        if key in _OF_SCHEMAS:
            for name, part in value.items():
                yield f"{place}.{key}.{name[:100]}", part
        elif key in _SCHEMAS or (key == "items" and isinstance(value, list)):
            for number, part in enumerate(cast(list[Any], value)):
                yield f"{place}.{key}[{number}]", part
        elif key in _SCHEMA:
            yield f"{place}.{key}", value


def _check_references(root: Any, nodes: list[tuple[str, Node]]) -> None:
    """Each leads to a schema, and none back to itself without a value in between."""
    document = _Document(root, frozenset(id(node) for _, node in nodes))
    state: dict[int, bool] = {}  # by the node's identity: whether its way is known to end
    for place, node in nodes:
        way: list[tuple[Node, Iterator[Node]]] = []
        _enter(node, document, place, state, way)
        while way:
            current, others = way[-1]
            other = next(others, None)
            if other is None:
                state[id(current)] = True
                way.pop()
            else:
                _enter(other, document, place, state, way)


class _Document(NamedTuple):
    root: Any
    schemas: frozenset[int]  # the identities of those in it


def _enter(
    node: Node, document: _Document, place: str, state: dict[int, bool], way: list[tuple[Node, Iterator[Node]]]
) -> None:
    ends = state.get(id(node))
    if ends is None:
        state[id(node)] = False
        way.append((node, _same_place(node, document)))
    elif not ends:
        raise _Fault(f"{place} refers to itself without end")


def _same_place(node: Node, document: _Document) -> Iterator[Node]:
    """The schemas that the very value of this one must match too."""
    reference = node.get("$ref")
    if reference is not None:
        target = _resolve(reference, document)
        if isinstance(target, dict):
            yield cast(Node, target)
    for key in _IN_PLACE:
        yield from [part for part in node.get(key, ()) if isinstance(part, dict)]


def _resolve(reference: str, document: _Document) -> Any:
    """The schema at a JSON pointer of this document."""
    if not reference.startswith("#"):
        raise _Fault(f"$ref {shown(reference)} leads out of the schema; only #/… is followed")
    target = document.root
    for step in reference[1:].split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and key.isdecimal() and int(key) < len(cast(list[Any], target)):
            target = cast(list[Any], target)[int(key)]
        elif isinstance(target, dict) and key in target:
            target = cast(Node, target)[key]
        else:
            target = None
            break
    if not isinstance(target, bool) and id(target) not in document.schemas:
        raise _Fault(f"$ref {shown(reference)} leads to no schema")
    return target


# ---- the keywords: each check tells what is wrong with its value --------------------------------------------------


def _type(value: Any) -> str | None:
    for kind in _several(value) or [value]:
        if not isinstance(kind, str) or kind not in _TYPES:
            return f"must be one of {', '.join(sorted(_TYPES))}, not {shown(kind)}"
    return None


def _several(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _object(value: Any) -> str | None:
    return None if isinstance(value, dict) else "must be an object"


def _pattern_object(value: Any) -> str | None:
    if not isinstance(value, dict):
        return "must be an object"
    faults = (_pattern(pattern) for pattern in cast(dict[str, Any], value))
    return next((fault for fault in faults if fault is not None), None)


def _schemas(value: Any) -> str | None:
    return None if isinstance(value, list) and value else "must be a list with at least one schema"


def _enum(value: Any) -> str | None:
    if not isinstance(value, list) or not value:
        return "must be a list with at least one value"
    size = len(cast(list[Any], value))
    return None if size <= _MOST_ENUM else f"has {size} values, and at most {_MOST_ENUM} are allowed"


def _names(value: Any) -> str | None:
    strings = isinstance(value, list) and all(isinstance(name, str) for name in cast(list[Any], value))
    return None if strings else "must be a list of strings"


def _count(value: Any) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
    return None if is_number and 0 <= value <= _MOST_REPEATS else f"must be a whole number from 0 to {_MOST_REPEATS}"


def _number(value: Any) -> str | None:
    return None if isinstance(value, int | float) and not isinstance(value, bool) else "must be a number"


def _pattern(value: Any) -> str | None:
    if not isinstance(value, str):
        return "must be a string"
    fault = regex_fault(value)
    return None if fault is None else f"is no usable regular expression: {fault}"


def _reference(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be a string"


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "type": _type,
    "enum": _enum,
    "required": _names,
    "pattern": _pattern,
    "$ref": _reference,
    **dict.fromkeys(_OF_SCHEMAS, _object),
    "patternProperties": _pattern_object,
    **dict.fromkeys(_SCHEMAS, _schemas),
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(_BOUNDS, _number),
}

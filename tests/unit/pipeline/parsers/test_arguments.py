"""What the text of a parameter is as JSON, by the tool's schema."""

import json
from typing import Any

import pytest

from apiserver.pipeline.parsers.arguments import kinds_of, to_json
from apiserver.pipeline.parsers.python_text import python_to_json


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        (None, ()),
        (True, ()),
        ({}, ()),
        ({"type": "string"}, ("string",)),
        ({"type": ["integer", "null"]}, ("integer", "null")),
        (
            {"enum": ["a", 1, None, 0.5, True, [], {}]},
            ("array", "boolean", "integer", "null", "number", "object", "string"),
        ),
        ({"anyOf": [{"type": "string"}, {"oneOf": [{"type": "null"}]}]}, ("null", "string")),
        ({"anyOf": [{"type": "string"}, {}]}, ()),
        ({"$ref": "#/$defs/a"}, ()),
    ],
)
def test_a_schema_says_which_kinds_it_allows(schema: Any, kinds: tuple[str, ...]) -> None:
    assert tuple(sorted(kinds_of(schema))) == kinds


def test_a_schema_that_goes_round_in_circles_allows_anything() -> None:
    circle: dict[str, Any] = {}
    circle["anyOf"] = [circle]
    assert kinds_of(circle) == frozenset()


@pytest.mark.parametrize(
    ("text", "kinds", "value"),
    [
        ("5", ("integer",), 5),
        ("5.0", ("integer",), 5.0),
        ("5.5", ("integer",), "5.5"),
        ("5", ("number",), 5),
        ("5", ("string", "null"), "5"),
        ("null", ("string", "null"), None),
        ("None", ("null", "string"), None),
        ("True", ("boolean",), True),
        ("maybe", ("boolean",), "maybe"),
        (" [1, 2] ", ("array",), [1, 2]),
        ("['a', (1,)]", ("array",), ["a", [1]]),
        ("{'a': {1: None}}", ("object",), {"a": {"1": None}}),
        ("{'a': f(x)}", ("object",), "{'a': f(x)}"),
        ("[" * 5000, ("array",), "[" * 5000),
        ("9" * 5000, ("integer",), "9" * 5000),
        ("NaN", ("number",), "NaN"),
        ('"x"', (), "x"),
        ("5", (), 5),
        ("word", (), "word"),
    ],
)
def test_text_becomes_a_value_of_a_kind_that_is_allowed_or_a_string(
    text: str, kinds: tuple[str, ...], value: Any
) -> None:
    assert json.loads(to_json(text, frozenset(kinds))) == value


@pytest.mark.parametrize("text", ["f(x)", "{**a}", "{f: 1}", "1e999", "-'a'", "[", "(" * 500, "\x00", "b'x'"])
def test_what_is_no_literal_is_none(text: str) -> None:
    assert python_to_json(text) is None


def test_literals_of_python_are_json() -> None:
    text = "{'a': [-1, True, None, 'x', {1}], 2: (1.5,), 'b': [true, null]}"
    document = python_to_json(text)
    assert document is not None
    assert json.loads(document) == {"a": [-1, True, None, "x", [1]], "2": [1.5], "b": [True, None]}

"""What cannot hold an answer is refused before the engine sees it; what could, passes."""

import json
from typing import Any

import pytest

from apiserver.errors import InvalidRequest
from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.protocol.grammar_check import grammar_fault
from apiserver.protocol.regex_check import regex_fault
from apiserver.protocol.schema_check import check_schema, schema_fault
from engine_bridge.wire import SamplingParams
from tests.unit.protocol.cards import make_card

HI = [{"role": "user", "content": "Hi"}]


def params(able: dict[str, Any] | None = None, **fields: Any) -> SamplingParams:
    card = make_card(able={"structural_tag": True, **(able or {})})
    return ChatCompletion(json.dumps({"messages": HI, **fields}).encode(), card).job.sampling_params


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": True, "b": False}, "additionalProperties": False},
        {"type": ["string", "null"], "pattern": "^(?<word>\\p{L}+)\\z", "minLength": 2, "maxLength": 3.0},
        {"type": "array", "items": {"$ref": "#"}},
        {"items": [{"type": "string"}], "prefixItems": [{}], "additionalItems": {}},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"enum": [None, 1]}}},
        {"$ref": "#/anyOf/1", "anyOf": [{}, {"const": 1}]},
        {
            "allOf": [{"$ref": "#/definitions/x"}, {"$ref": "#/definitions/x"}, True],
            "definitions": {"x": {"minimum": 0.5}},
        },
        {"patternProperties": {"^a": {}}, "required": ["a"], "not": {}, "unknown": {"type": "whatever"}},
        {"$ref": "#/$defs/yes", "$defs": {"yes": True}},
    ],
)
def test_a_schema_passes(schema: Any) -> None:
    assert schema_fault(json.dumps(schema)) is None


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "text"}, "$.type must be one of"),
        ({"type": []}, "$.type must be one of"),
        ({"type": ["string", 5]}, "not 5"),
        ({"properties": []}, "$.properties must be an object"),
        ({"properties": {"a": 5}}, "$.properties.a must be a schema"),
        ({"patternProperties": 5}, "must be an object"),
        ({"patternProperties": {"(": {}}}, "no usable regular expression"),
        ({"anyOf": []}, "at least one schema"),
        ({"anyOf": {"a": 1}}, "at least one schema"),
        ({"items": 5}, "$.items must be a schema"),
        ({"enum": []}, "at least one value"),
        ({"enum": list(range(10_001))}, "has 10001 values"),
        ({"required": [5]}, "list of strings"),
        ({"minItems": -1}, "whole number"),
        ({"maxLength": 10**9}, "whole number from 0 to 100000"),
        ({"minLength": True}, "whole number"),
        ({"minimum": "5"}, "must be a number"),
        ({"pattern": 5}, "must be a string"),
        ({"pattern": "foo**"}, "multiple repeat"),
        ({"$ref": 5}, "must be a string"),
        ({"$ref": "http://example.org/x"}, "leads out of the schema"),
        ({"$ref": "#/$defs/none"}, "leads to no schema"),
        ({"$ref": "#/enum/0", "enum": [1]}, "leads to no schema"),
        ({"$ref": "#"}, "without end"),
        ({"anyOf": [{"$ref": "#"}, {"type": "string"}]}, "without end"),
        ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}}, "without end"),
        ({"properties": {str(number): {} for number in range(5001)}}, "more than 5000 parts"),
        ({"description": "x" * 300_000}, "has 300019 characters"),
    ],
)
def test_what_is_no_schema_says_where(schema: Any, words: str) -> None:
    fault = schema_fault(json.dumps(schema))
    assert fault is not None
    assert words in fault


def test_a_schema_may_be_64_deep() -> None:
    schema: Any = {}
    for _ in range(64):
        schema = {"items": schema}
    assert schema_fault(json.dumps(schema)) is None
    fault = schema_fault(json.dumps({"items": schema}))
    assert fault is not None
    assert "64 deep" in fault


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_verdict_is_the_same_when_it_is_remembered(size: int) -> None:
    text = json.dumps({"type": "x", "description": "x" * size})
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="the_field is no usable JSON schema: "):
            check_schema(text, "the_field")


@pytest.mark.parametrize(
    "text",
    [  # many a line: they are short
        "", "a|b", "[0-9]{4}-[0-9]{2}", r"\d+\.\d*", "(?=a)b", "[]a]{3}", "[^]]", r"[\]]", "a{,5}", "a{3,}",
        r"\u{1F600}", r"\P{Lu}", "(?<x>a)", "(?<!a)b", "(a+)+$", r"a\/b", "[[a]",
    ],
)  # fmt: skip
def test_an_expression_passes(text: str) -> None:
    assert regex_fault(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("foo**", "multiple repeat"),
        ("(a", "unterminated"),
        ("[a", "unterminated"),
        ("a{99999999999}", "repetition"),
        ("((a{1000}){1000}){1000}", "multiply"),
        ("(?:ab|[cd]){60000}", "multiply"),
        ("(" * 5000, "too deeply"),
        ("a" * 9000, "9000 characters"),
    ],
)
def test_what_is_no_expression_says_why(text: str, words: str) -> None:
    fault = regex_fault(text)
    assert fault is not None
    assert words in fault


@pytest.mark.parametrize(
    "text",
    ['root ::= "a" | [b-z] # ( "\nx ::= ("y")', 'start: /["(]/', 'root ::= "\\"" ("a" ("b"))', 'root ::= [\\]"]'],
)
def test_a_grammar_passes(text: str) -> None:
    assert grammar_fault(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" ", "empty"),
        ('rule ::= "a"', "no rule named root"),
        ('root ::= x\nx ::= "a', "literal in line 2"),
        ("root ::= [a", "class of characters in line 1"),
        ('root ::= ("a"', "not closed"),
        ('root ::= "a")', "not opened"),
        ("x" * 300_000, "300000 characters"),
    ],
)
def test_what_is_no_grammar_says_why(text: str, words: str) -> None:
    fault = grammar_fault(text)
    assert fault is not None
    assert words in fault


TAG = {"structures": [{"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}], "triggers": ["<a"]}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"response_format": {"type": "structural_tag", **TAG}}, {"type": "structural_tag", **TAG}),
        ({"structured_outputs": {"structural_tag": TAG}}, TAG),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, TAG),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
            {"type": "structural_tag", "format": {"type": "any_text"}},
        ),
    ],
)
def test_a_structural_tag_goes_to_an_engine_that_has_them(fields: dict[str, Any], text: Any) -> None:
    assert json.loads(params(**fields).structural_tag or "") == text
    with pytest.raises(InvalidRequest, match="cannot honour"):
        params(able={"structural_tag": False}, **fields)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "foo**"}, "regex"),
        ({"ebnf": "x ::= y"}, "ebnf"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json": {"type": "x"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag"),
        (
            {"structured_outputs": {"structural_tag": TAG | {"triggers": [5]}}},
            "structured_outputs.structural_tag.triggers",
        ),
        (
            {"structured_outputs": {"structural_tag": TAG | {"structures": [{"begin": "a"}]}}},
            "structured_outputs.structural_tag.structures[0]",
        ),
        (
            {
                "response_format": {
                    "type": "structural_tag",
                    **TAG,
                    "structures": [{**TAG["structures"][0], "schema": {"type": 1}}],
                }
            },
            "response_format.structures[0].schema",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}}, "response_format"),
    ],
)
def test_what_no_engine_could_use_is_a_400_that_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        params(**fields)
    assert caught.value.param == param

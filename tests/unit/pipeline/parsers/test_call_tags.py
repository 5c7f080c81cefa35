"""Structural tags for strict tools: which there are, and that our parsers read what they admit."""

import json
from typing import Any

import pytest

from apiserver.pipeline.parsers.call_tags import ANY_OBJECT, strict_calls
from apiserver.pipeline.parsers.names import call_format
from apiserver.requests import Structure
from tests.strict_calls import ARGUMENTS, BY_PARSER, PLAIN, TOOLS, WEATHER, Calls
from tests.unit.pipeline.parsers.reading import read


def tags(parser: str, *tools: dict[str, Any]) -> dict[str, Any]:
    made = strict_calls(call_format(parser), tools)
    assert made is not None
    return made


@pytest.mark.parametrize(("parser", "calls"), [(name, calls) for name, many in BY_PARSER.items() for calls in many])
def test_what_is_admitted_is_read_as_a_call(parser: str, calls: Calls) -> None:
    how = Structure(tool_calls=parser, tools=TOOLS)
    [(name, arguments)] = read(how, [calls.right]).calls
    assert (name, json.loads(arguments)) == ("weather", ARGUMENTS)
    [(name, arguments)] = read(how, [calls.free]).calls
    assert (name, list(json.loads(arguments))) == ("plain", ["y"])


@pytest.mark.parametrize("parser", BY_PARSER)
def test_every_tag_begins_with_one_trigger_and_stands_in_an_answer(parser: str) -> None:
    made = tags(parser, *TOOLS)
    answers = [text for calls in BY_PARSER[parser] for text in (calls.right, calls.free)]
    for tag in made["tags"]:
        assert len([trigger for trigger in made["triggers"] if tag["begin"].startswith(trigger)]) == 1
        assert any(tag["begin"] in text and tag["end"] in text for text in answers)


def test_a_strict_tools_arguments_have_its_schema_and_anothers_any_object() -> None:
    weather, plain = tags("hermes", *TOOLS)["tags"]
    assert weather["begin"] == '<tool_call>\n{"name": "weather", "arguments": '
    assert weather["content"]["json_schema"] == WEATHER["function"]["parameters"]
    assert plain["content"]["json_schema"] == ANY_OBJECT
    bare = {"type": "function", "function": {"name": "bare", "strict": True}}
    assert tags("hermes", bare)["tags"][0]["content"]["json_schema"] == ANY_OBJECT


def test_where_every_call_begins_in_its_own_way_only_strict_tools_are_held() -> None:
    assert [tag["begin"] for tag in tags("llama3_json", *TOOLS)["tags"]] == ['{"name": "weather", "parameters": ']


def test_a_name_in_json_is_a_json_string() -> None:
    odd = {"type": "function", "function": {"name": 'a"NAMEé', "strict": True}}
    assert tags("hermes", odd)["tags"][0]["begin"] == '<tool_call>\n{"name": "a\\"NAMEé", "arguments": '
    assert tags("qwen3_coder", odd)["tags"][0]["begin"] == '<function=a"NAMEé>\n'


@pytest.mark.parametrize(("parser", "tools"), [("hermes", (PLAIN,)), ("hermes", ()), ("pythonic", TOOLS)])
def test_without_a_strict_tool_or_an_opening_there_is_none(parser: str, tools: tuple[dict[str, Any], ...]) -> None:
    assert strict_calls(call_format(parser), tools) is None

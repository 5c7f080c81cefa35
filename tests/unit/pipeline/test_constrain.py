"""What an answer is held to, by where it begins: at once, behind its reasoning, or from a call's opening on."""

import json
from typing import Any

import msgspec
import pytest

from apiserver.pipeline.constrain import constrain
from apiserver.requests import FORCED_CALLS, Structure
from engine_bridge.wire import Capabilities, SamplingParams
from tests.strict_calls import TOOLS

ABLE = Capabilities("generate", 100, 259, tag_formats=True)
UNABLE = msgspec.structs.replace(ABLE, tag_formats=False)
SCHEMA = SamplingParams(json_schema='{"type":"object"}')
JSON = {"type": "json_schema", "json_schema": {"type": "object"}, "max_whitespace_cnt": 16}
FORCED = Structure("qwen3", FORCED_CALLS, TOOLS)
STRICT = Structure("qwen3", "hermes", TOOLS)
OPEN, CLOSED = "assistant\n<think>\n", "assistant\n<think>\n\n</think>\n\n"


def form(params: SamplingParams, structure: Structure, prompt_end: str = "") -> dict[str, Any]:
    made = constrain(params, structure, prompt_end, ABLE)
    assert (made.json_schema, made.regex, made.grammar) == (None, None, None)
    document = json.loads(made.structural_tag or "")
    assert document["type"] == "structural_tag"
    return document["format"]


def test_inside_the_reasoning_its_end_comes_first() -> None:
    thought, spaces, body = form(SCHEMA, FORCED, OPEN)["elements"]
    assert thought == {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "</think>"}
    assert (spaces["type"], body) == ("regex", JSON)


def test_before_the_reasoning_the_model_may_think_or_not() -> None:
    made = form(SCHEMA, FORCED, "assistant\n")
    thought, at_once = made["elements"]
    assert (made["type"], thought["type"], at_once) == ("or", "sequence", JSON)
    assert (thought["elements"][0]["begin"], thought["elements"][-1]) == ("<think>", JSON)


@pytest.mark.parametrize(
    ("structure", "prompt_end"),
    [
        (FORCED, CLOSED),
        (msgspec.structs.replace(FORCED, thinking=False), "assistant\n"),
        (msgspec.structs.replace(FORCED, reasoning="deepseek-r1", thinking=False), "assistant\n"),
        (msgspec.structs.replace(FORCED, reasoning=None), OPEN),
        (msgspec.structs.replace(FORCED, reasoning="gpt-oss"), "assistant"),
    ],
)
def test_where_no_reasoning_comes_the_constraint_stays_as_it_is(structure: Structure, prompt_end: str) -> None:
    assert constrain(SCHEMA, structure, prompt_end, ABLE) is SCHEMA


def test_a_model_that_begins_inside_its_reasoning_is_waited_for() -> None:
    made = form(SCHEMA, msgspec.structs.replace(FORCED, reasoning="deepseek-r1"), "assistant\n")
    assert (made["type"], made["elements"][0]["begin"]) == ("sequence", "")


@pytest.mark.parametrize(
    ("params", "body"),
    [
        (SamplingParams(regex="a+"), {"type": "regex", "pattern": "a+"}),
        (SamplingParams(grammar='root ::= "a"'), {"type": "grammar", "grammar": 'root ::= "a"'}),
    ],
)
def test_every_kind_of_constraint_waits(params: SamplingParams, body: dict[str, Any]) -> None:
    assert form(params, Structure("qwen3"), OPEN)["elements"][-1] == body


def test_strict_tools_hold_the_calls_and_not_the_reasoning() -> None:
    thought, body = form(SamplingParams(), STRICT, OPEN)["elements"]
    assert (thought["end"], body["type"], body["triggers"]) == ("</think>", "triggered_tags", ["<tool_call>"])
    assert form(SamplingParams(), STRICT, CLOSED)["type"] == "triggered_tags"
    assert form(SamplingParams(), msgspec.structs.replace(STRICT, reasoning=None))["type"] == "triggered_tags"


def test_a_call_that_ends_the_reasoning_is_held_inside_it() -> None:
    kimi = Structure("kimi_k2", "kimi_k2", TOOLS)
    assert form(SamplingParams(), kimi, OPEN)["type"] == "triggered_tags"
    assert form(SCHEMA, kimi, OPEN)["type"] == "sequence"


@pytest.mark.parametrize(
    "structure", [Structure("qwen3"), Structure("qwen3", "pythonic", TOOLS), Structure(None, "gpt-oss", TOOLS)]
)
def test_where_nothing_is_asked_or_can_be_nothing_is_held(structure: Structure) -> None:
    params = SamplingParams()
    assert constrain(params, structure, OPEN, ABLE) is params


def test_a_constraint_of_the_clients_leaves_strict_a_hint() -> None:
    assert form(SCHEMA, STRICT, OPEN)["elements"][-1] == JSON
    tagged = SamplingParams(structural_tag="{}")
    assert constrain(tagged, STRICT, OPEN, ABLE) is tagged


def test_an_engine_that_does_not_know_the_form_gets_what_was_asked() -> None:
    assert constrain(SCHEMA, FORCED, OPEN, UNABLE) is SCHEMA
    params = SamplingParams()
    assert constrain(params, STRICT, OPEN, UNABLE) is params

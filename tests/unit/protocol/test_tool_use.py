"""What follows from tools and the choice among them."""

import json
from typing import Any

import pytest

from apiserver.card import Card
from apiserver.errors import InvalidRequest
from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.protocol.tokenize import Tokenize
from apiserver.requests import FORCED_CALL, FORCED_CALLS, Chat, GenerateJob
from tests.unit.protocol.cards import make_card

TREE = {
    "type": "object",
    "properties": {
        "child": {"$ref": "#"},
        "leaf": {"$ref": "#/$defs/leaf"},
        "one": {"anyOf": [{"$ref": "#/$defs/leaf"}]},
    },
    "$defs": {"leaf": {"type": "string"}},
}
PLAIN: dict[str, Any] = {"type": "function", "function": {"name": "plain", "parameters": {"type": "object"}}}
BARE: dict[str, Any] = {"type": "function", "function": {"name": "bare"}}
DEEP: dict[str, Any] = {"type": "function", "function": {"name": "deep", "strict": True, "parameters": TREE}}
TOOLS = [PLAIN, BARE]
PARSED = make_card(tool_call_parser="hermes", reasoning_parser="qwen3")


def job(card: Card = PARSED, **fields: Any) -> GenerateJob:
    return ChatCompletion(json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode(), card).job


def shown(made: GenerateJob) -> Any:
    [prompt] = made.prompts
    assert isinstance(prompt, Chat)
    return prompt.tools


def refusal(card: Card = PARSED, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        job(card, **fields)
    return caught.value


def test_without_tools_only_reasoning_is_read() -> None:
    structure = job().structure
    assert structure is not None
    assert (structure.reasoning, structure.tool_calls) == ("qwen3", None)
    assert job(make_card()).structure is None
    assert job(separate_reasoning=False).structure is None


@pytest.mark.parametrize("choice", [None, "auto"])
def test_tools_are_shown_and_their_calls_read(choice: Any) -> None:
    made = job(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert made.structure is not None
    assert (made.structure.tool_calls, made.structure.tools) == ("hermes", tuple(TOOLS))
    assert not made.structure.parallel
    assert shown(made) == TOOLS
    assert made.sampling_params.json_schema is None


def test_with_none_the_prompt_has_no_tools_and_the_answer_no_calls() -> None:
    made = job(tools=TOOLS, tool_choice="none")
    assert made.structure is not None
    assert (shown(made), made.structure.tool_calls) == (None, None)


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"thinking": True}}, True),
        ({"chat_template_kwargs": {"thinking": "high"}}, None),
        ({"reasoning_effort": "none"}, False),
        ({"thinking": True}, True),
    ],
)
def test_what_the_request_says_of_thinking_is_known_to_the_reader(fields: dict[str, Any], thinking: Any) -> None:
    structure = job(**fields).structure
    assert structure is not None
    assert structure.thinking is thinking


def test_required_is_a_list_of_calls_of_the_tools() -> None:
    made = job(tools=TOOLS, tool_choice="required")
    schema = json.loads(made.sampling_params.json_schema or "")
    assert (schema["type"], schema["minItems"]) == ("array", 1)
    assert "maxItems" not in schema
    plain, bare = schema["items"]["anyOf"]
    assert plain["properties"] == {"name": {"const": "plain"}, "parameters": {"type": "object"}}
    assert bare["properties"]["parameters"]["additionalProperties"] is False
    assert made.structure is not None
    assert (made.structure.tool_calls, made.structure.reasoning) == (FORCED_CALLS, None)
    assert shown(made) == TOOLS


def test_required_with_one_tool_and_one_call() -> None:
    made = job(tools=[PLAIN], tool_choice="required", parallel_tool_calls=False)
    schema = json.loads(made.sampling_params.json_schema or "")
    assert (schema["maxItems"], schema["items"]["properties"]["name"]) == (1, {"const": "plain"})


def test_references_of_a_tools_schema_lead_to_the_same_in_the_list() -> None:
    schema = json.loads(job(tools=[PLAIN, DEEP], tool_choice="required").sampling_params.json_schema or "")
    assert schema["items"]["anyOf"][1]["properties"]["parameters"] == {"$ref": "#/$defs/tool1"}
    moved = schema["$defs"]["tool1"]["properties"]
    assert (moved["child"], moved["leaf"]) == ({"$ref": "#/$defs/tool1"}, {"$ref": "#/$defs/tool1/$defs/leaf"})


def test_a_named_tools_arguments_are_the_answer() -> None:
    named = {"type": "function", "function": {"name": "deep"}}
    made = job(tools=[PLAIN, DEEP], tool_choice=named)
    assert json.loads(made.sampling_params.json_schema or "") == TREE
    assert made.structure is not None
    assert (made.structure.tool_calls, made.structure.tools) == (FORCED_CALL, (DEEP,))
    assert shown(made) == [PLAIN, DEEP]


@pytest.mark.parametrize(("mode", "parser"), [("auto", "hermes"), ("required", FORCED_CALLS)])
def test_allowed_tools_are_those_that_the_prompt_has(mode: str, parser: str) -> None:
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "bare"}}]}
    made = job(tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert shown(made) == [BARE]
    assert made.structure is not None
    assert made.structure.tool_calls == parser


def allowed(*tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tool_choice": "auto"}, "tool_choice", "no tools"),
        ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice", "not always"),
        ({"tools": TOOLS, "tool_choice": {}}, "tool_choice", "named function"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice", "named function"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "none of the",
        ),
        ({"tools": TOOLS, "tool_choice": allowed()}, "tool_choice.allowed_tools.tools", "empty"),
        ({"tools": TOOLS, "tool_choice": allowed(DEEP)}, "tool_choice.allowed_tools.tools[0]", "none of the tools"),
        ({"tools": TOOLS, "tool_choice": allowed(5)}, "tool_choice.allowed_tools.tools[0]", "none of the tools"),
        ({"tools": [{**PLAIN, "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict", "true or false"),
        ({"tools": TOOLS, "tool_choice": "required", "regex": "a"}, "regex", "Only one constraint"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}],
                "tool_choice": "required",
            },
            "tools",
            "must be one of",
        ),
        ({"functions": [{"name": "f"}]}, "functions", "not supported"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], param: str, words: str) -> None:
    error = refusal(**fields)
    assert error.param == param
    assert words in error.message


def test_a_model_without_a_parser_takes_no_tools_but_may_be_forced() -> None:
    card = make_card(tool_call_parser=None)
    error = refusal(card, tools=TOOLS)
    assert (error.param, "--tool-call-parser" in error.message) == ("tools", True)
    assert job(card, tools=TOOLS, tool_choice="none").structure is None
    assert job(card, tools=TOOLS, tool_choice="required").sampling_params.json_schema


def test_an_engine_without_schemas_cannot_be_forced() -> None:
    error = refusal(make_card(able={"json_schema": False}), tools=TOOLS, tool_choice="required")
    assert (error.param, "none or auto" in error.message) == ("tool_choice", True)


def test_ids_for_a_prompt_are_read_with_tools_too() -> None:
    made = ChatCompletion(json.dumps({"input_ids": [1], "tools": TOOLS}).encode(), PARSED).job
    assert made.structure is not None
    assert made.structure.tool_calls == "hermes"


def test_tokenize_shows_the_same_tools() -> None:
    raw = json.dumps(
        {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS, "tool_choice": "required"}
    ).encode()
    assert Tokenize(raw, PARSED).job.prompts == ChatCompletion(raw, PARSED).job.prompts


TAGGED = make_card(able={"tag_formats": True}, tool_call_parser="hermes", reasoning_parser="qwen3")


def test_a_forced_call_has_reasoning_before_it_where_the_engine_can_wait() -> None:
    named = {"type": "function", "function": {"name": "plain"}}
    for choice, parser in (("required", FORCED_CALLS), (named, FORCED_CALL)):
        structure = job(TAGGED, tools=TOOLS, tool_choice=choice, thinking=True, parallel_tool_calls=False).structure
        assert structure is not None
        assert (structure.reasoning, structure.tool_calls) == ("qwen3", parser)
        assert (structure.thinking, structure.parallel) == (True, False)
        assert job(TAGGED, tools=TOOLS, tool_choice=choice, separate_reasoning=False).structure is not None


def test_a_strict_tools_schema_is_checked_where_the_engine_sees_it() -> None:
    wrong: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "x"}, "strict": True}}
    assert refusal(TAGGED, tools=[PLAIN, wrong]).param == "tools"
    assert job(TAGGED, tools=[DEEP, BARE]).structure is not None
    assert job(PARSED, tools=[wrong]).structure is not None

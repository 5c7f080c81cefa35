"""A response's request: what becomes of each field, and what is refused by its path."""

import json
from typing import Any

import msgspec
import pytest

from apiserver.errors import ContextLengthExceeded, InvalidRequest, NotFound
from apiserver.protocol.responses import Past, Response
from apiserver.protocol.responses_request import ResponseFields, read_response
from apiserver.requests import Chat, GenerateJob, Structure, Truncation
from tests.unit.protocol.cards import make_card

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
OTHER = {"type": "function", "name": "g", "description": "other", "strict": False}
IN_CHAT = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OTHER_IN_CHAT = {"type": "function", "function": {"name": "g", "description": "other", "strict": False}}


def fields_of(card: Any = None, **fields: Any) -> ResponseFields:
    return read_response(json.dumps({"input": "Hi", **fields}).encode(), card or make_card())


def job(card: Any = None, **fields: Any) -> GenerateJob:
    card = card or make_card()
    return Response(fields_of(card, **fields), Past(), card, stores=True).job


def chat(**fields: Any) -> Chat:
    (prompt,) = job(**fields).prompts
    assert isinstance(prompt, Chat)
    return prompt


def test_every_field_that_is_honoured_is_in_the_job() -> None:
    made = job(
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        seed=-3,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        stop="END",
        stop_token_ids=[7],
        logit_bias={"5": -100},
        top_logprobs=3,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        priority=2,
        cache_salt="salt",
        request_id="ignored",
    )
    params = made.sampling_params
    assert (made.max_tokens, made.max_tokens_param, made.n) == (9, "max_output_tokens", 1)
    assert (made.stop, made.include_stop, made.skip_special_tokens) == (("END",), True, False)
    assert (made.priority, made.cache_salt) == (2, "salt")
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.seed) == (0.5, 0.9, 7, 0.1, -3)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, -1, 1.1)
    assert (params.stop_token_ids, params.logit_bias, params.logprobs) == ((7,), ((5, -100),), 3)


def test_an_abort_names_the_responses_own_id() -> None:
    card = make_card()
    response = Response(fields_of(card), Past(), card, stores=True)
    assert response.job.client_request_id == response.id
    assert response.id.startswith("resp_")


def test_nothing_but_an_input_is_needed() -> None:
    made = job()
    assert (made.max_tokens, made.stop, made.truncation, made.structure) == (None, (), None, None)
    assert made.sampling_params.logprobs is None
    assert chat().messages == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({"include": ["message.output_text.logprobs"]}, 0),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 2}, 2),
        ({"top_logprobs": 0}, None),
        ({"include": ["reasoning.encrypted_content", "web_search_call.results"]}, None),
        ({"include": []}, None),
    ],
    ids=str,
)
def test_logprobs_are_asked_for_by_include_or_by_a_count(fields: dict[str, Any], logprobs: int | None) -> None:
    assert job(**fields).sampling_params.logprobs == logprobs


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ({"format": {"type": "text"}}, None),
        ({"verbosity": "high"}, None),
        ({"format": {"type": "json_object"}}, '{"type":"object"}'),
        ({"format": {"type": "json_schema", "name": "n", "schema": {"type": "array"}}}, '{"type":"array"}'),
    ],
    ids=str,
)
def test_a_format_constrains_the_output(text: dict[str, Any], schema: str | None) -> None:
    assert job(text=text).sampling_params.json_schema == schema


def test_a_truncation_leaves_room_for_the_answer() -> None:
    assert job(truncation="auto", max_output_tokens=100).truncation == Truncation(900, "left", "truncation")
    assert job(truncation="auto").truncation == Truncation(750, "left", "truncation")
    assert job(truncation="auto", max_output_tokens=5000).truncation == Truncation(1, "left", "truncation")
    assert job(truncation="disabled").truncation is None


def test_an_effort_is_a_variable_of_the_template() -> None:
    assert chat().variables == {}
    assert chat(reasoning={"effort": "none"}).variables == {
        "reasoning_effort": "none",
        "enable_thinking": False,
        "thinking": False,
    }
    variables = chat(reasoning={"effort": "high"}, chat_template_kwargs={"enable_thinking": False}).variables
    assert (variables["thinking"], variables["enable_thinking"]) == (True, False)


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, None),
        ({"reasoning": {"effort": "low"}}, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"chat_template_kwargs": {"thinking": True}}, True),
        ({"chat_template_kwargs": {"enable_thinking": "so so"}}, None),
    ],
    ids=str,
)
def test_the_reasoning_parser_hears_whether_the_model_thinks(fields: dict[str, Any], thinking: bool | None) -> None:
    structure = job(make_card(reasoning_parser="some"), **fields).structure
    assert structure == Structure(reasoning="some", thinking=thinking)


def test_tools_are_shown_to_the_template_in_chats_form() -> None:
    assert chat(tools=[TOOL, OTHER]).tools == [IN_CHAT, OTHER_IN_CHAT]
    assert chat(tools=[]).tools is None
    assert chat(tools=[TOOL], tool_choice="auto").tools == [IN_CHAT]
    structure = job(make_card(tool_call_parser="some"), tools=[TOOL]).structure
    assert structure == Structure(tool_calls="some", tools=(IN_CHAT,))


def test_only_the_allowed_tools_are_shown() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}
    assert chat(tools=[TOOL, OTHER], tool_choice=choice).tools == [OTHER_IN_CHAT]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["everything"]}, "include[0]"),
        ({"truncation": "some"}, "truncation"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"text": {"format": {}}}, "text.format.type"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": "{"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"reasoning": {"effort": 2}}, "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"reasoning": {"generate_summary": "long"}}, "reasoning.generate_summary"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"k": 5}}, "metadata[...]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "function"}]}, "tools[1].name"),
        ({"tools": [{"type": "function", "name": "n" * 129}]}, "tools[0].name"),
        ({"tools": [TOOL | {"parameters": []}]}, "tools[0].parameters"),
        ({"tools": [TOOL | {"strict": "yes"}]}, "tools[0].strict"),
        ({"tools": [TOOL | {"description": 5}]}, "tools[0].description"),
        ({"tools": [TOOL], "tool_choice": "f"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [5]}},
            "tool_choice.tools[0]",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [TOOL | {"name": 5}]}},
            "tool_choice.tools[0].name",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"n": 2}, "n"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
    ],
    ids=str,
)
def test_what_is_wrong_or_cannot_be_is_refused_by_its_path(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        job(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}], ids=str)
def test_a_call_that_must_be_made_is_one_for_the_tools_rules(choice: Any) -> None:
    """Whether it can be forced is said in one place for all dialects; here only that it gets there."""
    try:
        job(tools=[TOOL], tool_choice=choice)
    except InvalidRequest as refused:
        assert refused.param == "tool_choice"  # noqa: PT017  # either of the two is right


def test_more_items_than_the_context_has_tokens_are_refused_before_they_are_rendered() -> None:
    with pytest.raises(ContextLengthExceeded):
        job(input=[{"role": "user", "content": ""}] * 1001)


def test_another_model_is_not_found() -> None:
    with pytest.raises(NotFound):
        job(model="other")


def test_strict_fields_refuse_what_nobody_knows() -> None:
    strict = make_card(strict_fields=True)
    job(strict, user="u", stream_options={}, access_programs={}, prompt_cache_retention="24h", service_tier="auto")
    with pytest.raises(InvalidRequest) as refused:
        job(strict, colour="blue")
    assert refused.value.param == "colour"


def test_an_engine_without_logprobs_says_so_under_the_name_that_was_sent() -> None:
    for fields, param in (
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"top_logprobs": 1}, "top_logprobs"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            job(make_card(able={"logprobs": -1}), **fields)
        assert refused.value.param == param


def test_null_is_the_same_as_leaving_a_field_out() -> None:
    nulls = {name: None for name in ResponseFields.__struct_encode_fields__ if name != "input"}
    made, plain = job(**nulls), job()
    assert made.sampling_params == plain.sampling_params
    assert msgspec.structs.asdict(fields_of(**nulls)) == msgspec.structs.asdict(fields_of())

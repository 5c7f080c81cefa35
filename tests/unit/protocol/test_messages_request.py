"""What a Messages request means: its prompt as chat templates read it, its fields, and every refusal with its path."""

import json
from typing import Any

import pytest

from apiserver.errors import ApiError, ContextLengthExceeded, InvalidRequest, NotFound
from apiserver.protocol.messages import Messages
from apiserver.protocol.messages_count import CountTokens
from apiserver.requests import Chat, GenerateJob, Structure
from tests.unit.protocol.cards import make_card

HI = [{"role": "user", "content": "Hi"}]
TOOL: dict[str, Any] = {
    "name": "look_up",
    "description": "Looks up a word.",
    "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}},
}
FUNCTION = {
    "type": "function",
    "function": {"name": "look_up", "description": TOOL["description"], "parameters": TOOL["input_schema"]},
}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"word": "x"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "found"}


def job(card: Any = None, **fields: Any) -> GenerateJob:
    body = {"messages": HI, "max_tokens": 100, **fields}
    return Messages(json.dumps(body).encode(), card or make_card()).job


def chat_of(made: GenerateJob) -> Chat:
    (prompt,) = made.prompts
    assert isinstance(prompt, Chat)
    return prompt


def chat(**fields: Any) -> Chat:
    return chat_of(job(**fields))


def refusal(card: Any = None, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        job(card, **fields)
    return caught.value


def text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": one} for one in texts]


# ---- fields ---------------------------------------------------------------------------------------------------------


def test_every_field_that_is_honoured_is_in_the_job() -> None:
    made = job(
        max_tokens=2048,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        stop_sequences=["END", "STOP"],
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        thinking={"type": "enabled", "budget_tokens": 1024},
        chat_template_kwargs={"extra": 1, "thinking": "mine"},
        cache_salt="salt",
        stream=True,
    )
    params = made.sampling_params
    assert (made.max_tokens, made.max_tokens_param, made.clamp_max_tokens, made.n) == (2048, "max_tokens", True, 1)
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.9, 7)
    assert (params.json_schema, made.stop, made.cache_salt) == ('{"type":"object"}', ("END", "STOP"), "salt")
    assert chat_of(made).variables == {
        "extra": 1,
        "reasoning_effort": "high",
        "enable_thinking": True,
        "thinking": "mine",
    }


def test_unset_the_models_own_defaults_count() -> None:
    params = job(make_card(able={"temperature": 0.2, "top_k": 5})).sampling_params
    assert (params.temperature, params.top_p, params.top_k, params.json_schema) == (0.2, 1.0, 5, None)
    assert chat().variables == {}


@pytest.mark.parametrize(
    ("thinking", "thinks"), [(None, None), ({"type": "adaptive"}, True), ({"type": "disabled"}, False)]
)
def test_thinking_is_told_to_the_template_and_to_the_parser(thinking: Any, thinks: bool | None) -> None:
    made = job(make_card(reasoning_parser="tags"), thinking=thinking)
    assert made.structure == Structure(reasoning="tags", thinking=thinks)
    assert chat_of(made).variables.get("enable_thinking") is thinks
    assert chat_of(made).variables.get("thinking") is thinks


def test_the_schema_of_the_beta_is_the_same_schema() -> None:
    assert job(output_format={"type": "json_schema", "schema": {"a": 1}}).sampling_params.json_schema == '{"a":1}'


def test_ignored_and_unknown_fields_change_nothing() -> None:
    ignored: dict[str, Any] = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "context_management": {"edits": []},
        "betas": ["x"],
        "container": None,
        "diagnostics": {},
        "inference_geo": "us",
        "speed": "fast",
        "user_profile_id": "u",
        "workspace_id": "w",
        "cache_control": {"type": "ephemeral"},
    }
    assert job(make_card(strict_fields=True), **ignored) == job()
    assert job(fallbacks=[], zzz=1) == job()
    with pytest.raises(InvalidRequest, match="Unknown field: zzz"):
        job(make_card(strict_fields=True), zzz=1)


# ---- the conversation -----------------------------------------------------------------------------------------------


def test_a_system_prompt_is_the_first_message() -> None:
    assert chat(system="Be brief.").messages == [
        {"role": "system", "content": text("Be brief.")},
        {"role": "user", "content": text("Hi")},
    ]
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    assert chat(system=blocks).messages[0] == {"role": "system", "content": text("a", "b")}
    for empty in ("", [], None):
        assert chat(system=empty).messages == chat().messages


def test_the_line_that_claude_code_changes_with_every_request_is_left_out() -> None:
    line = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch=eb6c6;"
    assert chat(system=[*text(line), *text("You are")]).messages[0]["content"] == text("You are")
    assert chat(system=f"{line}\nYou are\nhelpful").messages[0]["content"] == text("You are\nhelpful")
    assert chat(system=line).messages == chat().messages
    assert chat(messages=[{"role": "user", "content": line}]).messages[0]["content"] == text(line)


def test_a_conversation_with_tools_is_what_templates_know() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "I look."},
                CALL,
                {**CALL, "id": "toolu_2", "input": None},
            ],
        },
        {
            "role": "user",
            "content": [
                RESULT,
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": text("a", "b"), "is_error": True},
                {"type": "tool_result", "tool_use_id": "elsewhere"},
                {"type": "text", "text": "Go on."},
            ],
        },
    ]

    def function(arguments: dict[str, Any]) -> dict[str, Any]:
        return {"name": "look_up", "arguments": arguments}

    assert chat(messages=messages).messages == [
        {"role": "user", "content": text("one", "two")},
        {
            "role": "assistant",
            "content": text("I look."),
            "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": function({"word": "x"})},
                {"id": "toolu_2", "type": "function", "function": function({})},
            ],
            "reasoning_content": "hm",
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": text("found"), "name": "look_up"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": text("Error:", "a", "b"), "name": "look_up"},
        {"role": "tool", "tool_call_id": "elsewhere", "content": []},
        {"role": "user", "content": text("Go on.")},
    ]


def test_messages_of_one_role_that_follow_each_other_are_one() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    messages = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": text("b")},
        {"role": "assistant", "content": [thought]},
        {"role": "assistant", "content": [thought, *text("c")]},
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": []},
        {"role": "system", "content": "d"},
        {"role": "system", "content": text("e")},
        {"role": "user", "content": "f"},
    ]
    made = chat(messages=messages).messages
    assert [(message["role"], message["content"]) for message in made] == [
        ("user", text("a", "b")),
        ("assistant", text("c")),
        ("user", []),
        ("system", text("d", "e")),
        ("user", text("f")),
    ]
    assert made[1]["reasoning_content"] == "hm\nhm"
    assert len(made[1]["tool_calls"]) == 1


def test_a_last_message_of_the_assistant_is_the_beginning_of_the_answer() -> None:
    prefilled = job(make_card(reasoning_parser="tags"), messages=[*HI, {"role": "assistant", "content": "The answer"}])
    made = chat_of(prefilled)
    assert (made.continue_final_message, made.add_generation_prompt) == (True, False)
    assert made.messages[-1] == {"role": "assistant", "content": text("The answer")}
    assert prefilled.structure == Structure(reasoning="tags", thinking=False)  # it is past its reasoning
    made = chat()
    assert (made.continue_final_message, made.add_generation_prompt) == (False, True)


@pytest.mark.parametrize("content", ["", []])
def test_an_empty_beginning_is_none(content: Any) -> None:
    made = chat(messages=[*HI, {"role": "assistant", "content": content}])
    assert made.messages == chat().messages
    assert not made.continue_final_message


# ---- tools ----------------------------------------------------------------------------------------------------------


def test_tools_are_given_to_the_template_and_to_the_parser_as_functions() -> None:
    card = make_card(tool_call_parser="hermes", reasoning_parser="tags")
    choices: list[tuple[Any, bool]] = [
        (None, True),
        ({"type": "auto"}, True),
        ({"type": "auto", "disable_parallel_tool_use": True}, False),
    ]
    for choice, parallel in choices:
        made = job(card, tools=[{**TOOL, "cache_control": {}, "type": "custom"}], tool_choice=choice)
        assert chat_of(made).tools == [FUNCTION]
        assert made.structure == Structure("tags", "hermes", (FUNCTION,), parallel=parallel)
    made = job(card, tools=[TOOL], tool_choice={"type": "none"})
    assert made.structure is not None
    assert made.structure.tool_calls is None


def test_a_tool_needs_no_description_and_may_be_strict() -> None:
    assert chat(tools=[{"name": "f", "input_schema": {}, "strict": True}]).tools == [
        {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}
    ]


def test_no_tools_are_no_tools() -> None:
    for fields in ({}, {"tools": []}, {"tools": None}, {"tools": [], "tool_choice": {"type": "auto"}}):
        assert job(**fields) == job()


# ---- refusals -------------------------------------------------------------------------------------------------------


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"messages": [*HI, {"role": "assistant", "content": list(blocks)}, *HI]}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
REFUSED: list[tuple[dict[str, Any], str | None, str]] = [
    ({"max_tokens": None}, "max_tokens", "max_tokens is required"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": "5"}, "max_tokens", "Expected `int | null`"),
    ({"messages": None}, "messages", "at least one message"),
    ({"messages": []}, "messages", "at least one message"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "user, assistant, system, not tool"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "required"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "Expected `str | array`"),
    (user(IMAGE), "messages[0].content[0]", "of type 'image', which this server does not take: only text, tool_result"),
    (user({"type": "text"}), "messages[0].content[0].text", "required"),
    (user({"text": "x"}), "messages[0].content[0].type", "required"),
    (user(CALL), "messages[0].content[0]", "tool_use"),
    (user({"type": "document", "source": {}}), "messages[0].content[0]", "document"),
    (user({"type": "tool_result"}), "messages[0].content[0].tool_use_id", "required"),
    (user({**RESULT, "content": {"a": 1}}), "messages[0].content[0].content", "string or a list"),
    (user({**RESULT, "content": [IMAGE]}), "messages[0].content[0].content[0]", "only text can stand there"),
    (assistant(RESULT), "messages[1].content[0]", "tool_result"),
    (assistant({"type": "server_tool_use", "id": "x"}), "messages[1].content[0]", "server_tool_use"),
    (
        assistant({"type": "web_search_tool_result", "content": [{"type": "web_search_result"}]}),
        "messages[1].content[0]",
        "web_search_tool_result",
    ),
    (assistant({"type": "thinking"}), "messages[1].content[0].thinking", "required"),
    (assistant({**CALL, "id": None}), "messages[1].content[0].id", "required"),
    (assistant({**CALL, "name": None}), "messages[1].content[0].name", "required"),
    (assistant({**CALL, "input": [1]}), "messages[1].content[0].input", "must be an object"),
    ({"messages": [*HI, {"role": "assistant", "content": [CALL]}]}, "messages", "a tool_result must follow"),
    (
        {"messages": [*HI, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}]},
        "messages",
        "cannot be continued",
    ),
    ({"messages": [{"role": "assistant", "content": ""}]}, "messages", "more than an empty message"),
    ({"system": [IMAGE]}, "system[0]", "only text can stand there"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type", "only custom tools"),
    ({"tools": [TOOL, {**TOOL, "name": ""}]}, "tools[1].name", "required"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name", "names must differ"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "required"),
    ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema", "Expected `object | null`"),
    ({"tool_choice": {"type": "any"}}, "tool_choice", "there are no tools"),
    ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice", "there are no tools"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}}, "tool_choice.name", "none of the tools"),
    ({"tool_choice": {"type": "some"}}, "tool_choice.type", "auto, any, tool or none"),
    ({"thinking": {"type": "often"}}, "thinking.type", "enabled, adaptive or disabled"),
    ({"thinking": {"type": "adaptive", "display": "all"}}, "thinking.display", "summarized or omitted"),
    ({"thinking": {"type": "enabled", "budget_tokens": 10}}, "thinking.budget_tokens", "at least 1024"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens", "less than max_tokens (100)"),
    ({"output_config": {"effort": "all"}}, "output_config.effort", "low, medium, high, xhigh, max"),
    ({"output_config": {"format": {"type": "text"}}}, "output_config.format.type", "json_schema"),
    ({"output_format": {"type": "json_schema"}}, "output_format.schema", "must be a JSON schema"),
    ({"stop_sequences": [""]}, "stop_sequences", "empty string"),
    ({"stop_sequences": ["a"] * 65}, "stop_sequences", "at most 64"),
    ({"stop_sequences": ["a" * 1025]}, "stop_sequences", "1024 characters"),
    ({"temperature": -1}, "temperature", "at least 0"),
    ({"top_p": 0}, "top_p", "above 0"),
    ({"top_k": -2}, "top_k", "at least -1"),
    ({"cache_salt": "s" * 1025}, "cache_salt", "at most 1024"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "not supported"),
    ({"vllm_xargs": {"a": 1}}, "vllm_xargs", "not supported"),
]


@pytest.mark.parametrize(("fields", "param", "says"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_cannot_be_honoured_is_refused_by_its_path(fields: dict[str, Any], param: str | None, says: str) -> None:
    error = refusal(**fields)
    assert (error.status, error.param) == (400, param), error
    assert says in error.message


def test_two_schemas_are_one_too_many() -> None:
    one = {"type": "json_schema", "schema": {}}
    assert "Only one constraint" in refusal(output_config={"format": one}, output_format=one).message


def test_an_engine_that_cannot_keep_a_schema_says_so() -> None:
    one = {"type": "json_schema", "schema": {}}
    error = refusal(make_card(able={"json_schema": False}), output_config={"format": one})
    assert error.param == "output_config.format"


def test_more_blocks_than_tokens_are_refused_before_anything_is_done_with_them() -> None:
    for fields in (user(*text("") * 1001), {"system": text("") * 1001}, {"messages": HI * 1001}):
        assert isinstance(refusal(**fields), ContextLengthExceeded)


def test_models_and_their_aliases() -> None:
    aliases = make_card(aliases=("claude-*", "gpt-4"))
    for model in ("first", "second", "claude-opus-5", "claude-", "gpt-4", "", None):
        body = json.dumps({"model": model, "messages": HI, "max_tokens": 5}).encode()
        assert Messages(body, aliases).job is not None
    for model in ("gpt-4o", "anthropic", "Claude-x"):
        with pytest.raises(NotFound, match="'first', 'second'"):
            job(aliases, model=model)
    with pytest.raises(NotFound):
        job(model="claude-opus-5")
    assert aliases.listed_names == ("first", "second", "gpt-4")


# ---- count_tokens ---------------------------------------------------------------------------------------------------


def test_a_count_has_the_prompt_of_the_message() -> None:
    fields: dict[str, Any] = {
        "system": "Be brief.",
        "messages": [*HI, {"role": "assistant", "content": "The"}],
        "tools": [TOOL],
        "thinking": {"type": "enabled", "budget_tokens": 5},
    }
    counted = CountTokens(json.dumps(fields).encode(), make_card()).job
    assert counted.prompts == chat_list(**{**fields, "thinking": {"type": "enabled"}})
    assert not counted.with_token_texts


def chat_list(**fields: Any) -> list[Chat]:
    return [chat(**fields)]


def test_a_count_takes_every_field_of_a_message_and_needs_none_of_the_answers() -> None:
    body = {"messages": HI, "max_tokens": 5, "stop_sequences": [""], "metadata": {}}
    CountTokens(json.dumps(body).encode(), make_card(strict_fields=True))
    for wrong in ({"messages": HI, "zzz": 1}, {"messages": []}, {"messages": HI, "mcp_servers": [1]}):
        with pytest.raises(InvalidRequest):
            CountTokens(json.dumps(wrong).encode(), make_card(strict_fields=True))
    with pytest.raises(NotFound):
        CountTokens(b'{"model": "other"}', make_card())

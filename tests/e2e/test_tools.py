"""Tools and reasoning through a real pool: by the official client, its streaming helpers, and plain HTTP."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import StartPool
from tests.e2e.test_openai_client import all_valid, valid
from tests.pool import ECHO_TEMPLATE, Pool, running_pool
from tests.streams import OpenRequest

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln 🎉"}}\n</tool_call>'
ANSWER = f"<think>\nLet me see.\n</think>\n\nI look.\n{CALL}\n{CALL}"


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A sim that answers with the prompt, three tokens a step, read by Qwen's parsers."""
    output = tmp_path_factory.mktemp("tools") / "pool.log"
    flags = ("--api-server-count", "2", "--chat-template", ECHO_TEMPLATE, "--enable-auto-tool-choice")
    parsers = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    with running_pool(output, *flags, *parsers, engine=["--mode", "echo", "--tokens-per-step", "3"]) as running:
        yield running


def asked(text: str = ANSWER, **fields: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": [{"role": "user", "content": text}], "tools": [TOOL], **fields}


@pytest.mark.exercises("openai-python", "/v1/chat/completions", "tool calls and reasoning")
def test_the_official_client_reads_calls_and_reasoning(pool: Pool) -> None:
    completion = pool.openai.chat.completions.create(**asked())
    valid(completion)
    [choice] = completion.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.reasoning_content == choice.message.reasoning == "Let me see."
    calls: Any = choice.message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("weather", {"city": "Köln 🎉"})
    ] * 2
    assert len({call.id for call in calls}) == 2
    assert completion.usage is not None
    assert completion.usage.completion_tokens_details is not None
    assert completion.usage.completion_tokens_details.reasoning_tokens


@pytest.mark.exercises("openai-python", "/v1/chat/completions", "the stream helper with parsed arguments")
def test_the_clients_streaming_helper_builds_the_same_from_the_stream(pool: Pool) -> None:
    whole = pool.openai.chat.completions.create(**asked())
    with pool.openai.chat.completions.stream(**asked()) as stream:
        events = list(stream)
        built = stream.get_final_completion()
    assert built.choices[0].message.content == whole.choices[0].message.content
    assert built.choices[0].finish_reason == whole.choices[0].finish_reason == "tool_calls"
    ours: Any = built.choices[0].message.tool_calls
    theirs: Any = whole.choices[0].message.tool_calls
    assert [call.function.arguments for call in ours] == [call.function.arguments for call in theirs]
    assert ours[0].function.parsed_arguments == {"city": "Köln 🎉"}
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.index for event in done] == [0, 1]


def test_every_chunk_is_valid_and_has_an_index_for_each_call(pool: Pool) -> None:  # sgl-project/sglang#5661
    chunks = all_valid(pool.openai.chat.completions.create(**asked(stream=True)))
    deltas: list[Any] = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or ()]
    assert {delta.index for delta in deltas} == {0, 1}
    assert [delta.function.name for delta in deltas if delta.id] == ["weather", "weather"]
    assert all(isinstance(delta.function.arguments, str) for delta in deltas)  # vllm-project/vllm#9693


def test_reasoning_is_the_same_whole_and_streamed_with_and_without_tools(pool: Pool) -> None:  # vllm#46042
    every: list[dict[str, Any]] = [{}, {"tools": None}, {"tool_choice": "none"}]
    for fields in every:
        body = asked("<think>\nHm.\n</think>\n\nYes.", **fields)
        message = pool.post("/v1/chat/completions", body).json()["choices"][0]["message"]
        with OpenRequest(pool.url, "/v1/chat/completions", body | {"stream": True}) as request:
            deltas = [event["choices"][0]["delta"] for event in request.events() if event != "[DONE]"]
        assert "".join(delta.get("reasoning") or "" for delta in deltas) == message["reasoning"] == "Hm."
        assert "".join(delta.get("content") or "" for delta in deltas) == message["content"] == "Yes."


def test_a_call_that_max_tokens_cuts_ends_for_its_length(pool: Pool) -> None:  # vllm-project/vllm#53269
    for stream in (False, True):
        with OpenRequest(pool.url, "/v1/chat/completions", asked(CALL, stream=stream, max_tokens=50)) as request:
            if stream:
                reasons = [event["choices"][0]["finish_reason"] for event in request.events() if event != "[DONE]"]
            else:
                reasons = [request.json()["choices"][0]["finish_reason"]]
        assert reasons[-1] == "length"


def test_text_before_a_stop_string_arrives_with_a_parser_at_work(pool: Pool) -> None:  # vllm-project/vllm#42210
    choice = pool.post("/v1/chat/completions", asked("Hello < STOP", stop=["STOP"])).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == (
        "Hello < ",
        "stop",
        "STOP",
    )


def test_n_choices_are_each_taken_apart(pool: Pool) -> None:
    with OpenRequest(pool.url, "/v1/chat/completions", asked(stream=True, n=2)) as request:
        choices = [choice for event in request.events() if event != "[DONE]" for choice in event["choices"]]
    for index in (0, 1):
        mine = [choice for choice in choices if choice["index"] == index]
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["tool_calls"]
        ids = [call["id"] for choice in mine for call in choice["delta"].get("tool_calls", ()) if "id" in call]
        assert len(ids) == 2


def test_legacy_functions_and_forced_calls_are_refused_where_they_cannot_be(pool: Pool) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
    ]
    for fields, param in refused:
        reply = pool.post("/v1/chat/completions", asked(**fields))
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_a_conversation_with_calls_and_their_results_is_rendered(pool: Pool) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "x"}'}}
    messages = [
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny"},
    ]
    body = {"messages": messages, "tools": [TOOL]}
    rendered = pool.post("/v1/chat/completions/render", body).json()["prompts"][0]
    assert rendered["prompt"] == "How is it?Let me see.Sunny"
    assert pool.post("/tokenize", body).json()["tokens"] == rendered["prompt_token_ids"]


def test_the_parsers_are_routes_too(pool: Pool) -> None:
    document = pool.post("/separate_reasoning", {"text": ANSWER}).json()
    assert document["reasoning_text"] == "Let me see."
    assert document["text"].startswith("I look.\n<tool_call>")
    document = pool.post("/separate_reasoning", {"text": "Hm</think>Yes", "reasoning_parser": "deepseek-r1"}).json()
    assert document == {"reasoning_text": "Hm", "text": "Yes"}
    document = pool.post("/parse_function_call", {"text": CALL, "tools": [TOOL]}).json()
    assert document["normal_text"] == ""
    [found] = document["calls"]
    assert (found["tool_index"], found["name"], json.loads(found["parameters"])) == (0, "weather", {"city": "Köln 🎉"})
    text = "[TOOL_CALLS]other[ARGS]{}"
    document = pool.post("/parse_function_call", {"text": text, "tools": [TOOL], "tool_call_parser": "mistral"}).json()
    assert document["calls"] == [{"tool_index": -1, "name": "other", "parameters": "{}"}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/parse_function_call", {"text": "", "tools": [TOOL], "tool_call_parser": "x"}, "tool_call_parser"),
        ("/parse_function_call", {"text": "", "tools": []}, "tools"),
        ("/parse_function_call", {"tools": [TOOL]}, "text"),
        ("/separate_reasoning", {"text": "", "reasoning_parser": "x"}, "reasoning_parser"),
        ("/separate_reasoning", {}, "text"),
    ],
)
def test_the_parsers_routes_refuse_what_makes_no_sense(pool: Pool, path: str, body: Any, param: str) -> None:
    reply = pool.post(path, body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_a_long_text_is_parsed_without_holding_the_loop(pool: Pool) -> None:
    text = "<think>" + "word " * 200_000 + "</think>" + "more " * 200_000
    document = pool.post("/separate_reasoning", {"text": text}).json()
    assert len(document["reasoning_text"]) == 200_000 * 5 - 1
    assert document["text"] == "more " * 200_000


def test_the_pool_says_which_parsers_it_chose_and_why(pool: Pool, seeded_pool: Pool) -> None:
    assert pool.get("/server_info").json()["tool_call_parser"] == {"name": "hermes", "reason": "as asked"}
    info = seeded_pool.get("/server_info").json()["reasoning_parser"]
    assert info == {"name": None, "reason": "the chat template shows no format that is known"}
    assert "reasoning parser none: the chat template shows no format" in seeded_pool.log
    reply = seeded_pool.post("/separate_reasoning", {"text": "x"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "reasoning_parser")


def test_a_parser_that_there_is_not_ends_the_start_with_a_sentence(start_pool: StartPool) -> None:
    with start_pool("--tool-call-parser", "x", ready=False) as broken:
        assert broken.process.wait(20) != 0
        assert "There is no tool-call parser 'x'; there are hermes, " in broken.log


@pytest.mark.model
def test_a_real_model_makes_the_call_that_it_must(start_pool: StartPool) -> None:
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object", "properties": {}}}}
    asks: Any = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "How is the weather in Paris?"}],
        "tools": [TOOL, other],
        "max_tokens": 200,
        "temperature": 0,
    }
    named: Any = {"type": "function", "function": {"name": "weather"}}
    with start_pool("--api-server-count", "1", model="smollm2") as pool:
        create = pool.openai.chat.completions.create
        [choice] = create(tool_choice=named, **asks).choices
        calls: Any = choice.message.tool_calls
        assert [list(json.loads(call.function.arguments)) for call in calls] == [["city"]]
        assert (choice.finish_reason, choice.message.content) == ("stop", None)
        completion = create(tool_choice="required", parallel_tool_calls=False, **asks)
        valid(completion)
        [choice] = completion.choices
        calls = choice.message.tool_calls
        [call] = calls
        assert call.function.name in ("weather", "other")
        assert isinstance(json.loads(call.function.arguments), dict)
        assert choice.finish_reason == "tool_calls"
        with pool.openai.chat.completions.stream(tool_choice="required", parallel_tool_calls=False, **asks) as stream:
            built = stream.get_final_completion()
        streamed: Any = built.choices[0].message.tool_calls
        assert [found.function.arguments for found in streamed] == [call.function.arguments]


# ---- an engine that holds answers to what they must be ----


@pytest.fixture(scope="module")
def holding_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """As `pool`, with an engine that takes schemas and structural tags (and trusts the script to keep them)."""
    output = tmp_path_factory.mktemp("holding") / "pool.log"
    flags = ("--api-server-count", "1", "--chat-template", ECHO_TEMPLATE)
    parsers = ("--tool-call-parser", "hermes", "--reasoning-parser", "qwen3")
    engine = ["--mode", "echo", "--tokens-per-step", "3", "--constraints"]
    with running_pool(output, *flags, *parsers, engine=engine) as running:
        yield running


FORCED = '<think>\nLet me see.\n</think>\n\n[{"name": "weather", "parameters": {"city": "Köln"}}]'
NAMED: Any = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(("text", "choice"), [(FORCED, "required"), ('<think>Hm.</think>{"city": "Köln"}', NAMED)])
def test_a_forced_call_comes_behind_its_reasoning_whole_and_streamed(
    holding_pool: Pool, text: str, choice: Any
) -> None:
    whole = holding_pool.openai.chat.completions.create(**asked(text, tool_choice=choice)).choices[0].message
    with holding_pool.openai.chat.completions.stream(**asked(text, tool_choice=choice)) as stream:
        streamed = stream.get_final_completion().choices[0].message
    for message in (whole, streamed):
        said: Any = message
        [call] = said.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Köln"})
        assert said.reasoning in ("Let me see.", "Hm.")
        assert not said.content


def sampling(pool: Pool, text: str, **fields: Any) -> dict[str, Any]:
    [prompt] = pool.post("/v1/chat/completions/render", asked(text, **fields)).json()["prompts"]
    return prompt["sampling_params"]


def test_what_the_engine_is_told_waits_for_the_end_of_the_reasoning(holding_pool: Pool, pool: Pool) -> None:
    inside = json.loads(sampling(holding_pool, "Go. <think>\n", tool_choice="required")["structural_tag"])["format"]
    assert (inside["type"], inside["elements"][0]["end"]) == ("sequence", "</think>")
    closed = sampling(holding_pool, "Go. <think>\n\n</think>\n\n", tool_choice="required")
    assert closed["structural_tag"] is None
    assert json.loads(closed["json_schema"])["type"] == "array"
    form: Any = {"type": "json_object"}
    constrained = sampling(holding_pool, "Go. <think>\n", tools=None, response_format=form)
    assert json.loads(constrained["structural_tag"])["format"]["elements"][-1]["json_schema"] == {"type": "object"}
    strict = sampling(holding_pool, "Go. ", chat_template_kwargs={"enable_thinking": False})
    assert json.loads(strict["structural_tag"])["format"]["triggers"] == ["<tool_call>"]
    assert sampling(pool, "Go. ")["structural_tag"] is None, "an engine without them is told nothing"


def test_a_strict_tool_whose_schema_no_engine_could_use_is_refused(holding_pool: Pool) -> None:
    wrong = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "thing"}}}
    reply = holding_pool.post("/v1/chat/completions", asked(tools=[wrong]))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tools")


def test_the_other_dialects_force_a_call_behind_its_reasoning_too(holding_pool: Pool) -> None:
    function = TOOL["function"]
    body: dict[str, Any] = {"model": "sim", "max_tokens": 400, "messages": [{"role": "user", "content": FORCED}]}
    body |= {"tools": [{"name": "weather", "input_schema": function["parameters"]}], "tool_choice": {"type": "any"}}
    thinking, use = holding_pool.post("/v1/messages", body).json()["content"]
    assert (thinking["thinking"], use["input"]) == ("Let me see.", {"city": "Köln"})
    body = {"model": "sim", "input": FORCED, "tools": [{"type": "function", **function}], "tool_choice": "required"}
    reasoning, call = holding_pool.post("/v1/responses", body).json()["output"]
    assert (reasoning["type"], json.loads(call["arguments"])) == ("reasoning", {"city": "Köln"})

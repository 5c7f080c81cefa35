"""What the official clients, the frameworks and the load tools send, to the letter; and that they find what they read.

Payloads and readers were taken from the tools' own sources; a request is written as they write it, `null` included.
"""

import base64
import json
from typing import Any

import httpx
import openai
import pytest

from tests.pool import Pool

pytestmark = pytest.mark.e2e

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TEXT = "Grüße, 世界"
SIZE = len(TEXT.encode())


def frames(response: httpx.Response) -> list[str]:
    """The stream's data, one string an event. Nothing else may be in it: no comments, no event lines."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.split("\n")
    assert lines[1::2] == [""] * (len(lines) // 2)
    data = [line.removeprefix("data: ") for line in lines[0:-1:2]]
    assert [f"data: {line}" for line in data] == lines[0:-1:2]
    assert data[-1] == "[DONE]"
    return data[:-1]


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(frame) for frame in frames(response)]


# ---- vllm bench serve ----------------------------------------------------------------------------------------------


def test_vllm_bench_finds_its_tokens_in_completions(echo_pool: Pool) -> None:
    """Any chunk with choices counts as a token there, so none may come before the first token's."""
    payload = {
        "model": "sim",
        "prompt": TEXT,
        "repetition_penalty": 1.0,
        "max_tokens": SIZE,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    }
    text, counted, usage = "", 0, None
    for chunk in chunks(echo_pool.post(COMPLETIONS, payload, **{"x-request-id": "bench-0"})):
        if choices := chunk.get("choices"):
            counted += 1
            text += choices[0].get("text") or ""
            assert counted > 1 or choices[0]["text"], "an empty first chunk would be taken for the first token"
        elif usage := chunk.get("usage"):
            assert (usage["completion_tokens"], usage["prompt_tokens"]) == (SIZE, SIZE)
    assert text == TEXT
    assert usage


def test_vllm_bench_finds_its_tokens_in_chats(echo_pool: Pool) -> None:
    payload = {
        "model": "sim",
        "messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}],
        "max_completion_tokens": SIZE,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "temperature": 0.0,
    }
    text, usage = "", None
    for number, chunk in enumerate(chunks(echo_pool.post(CHAT, payload))):
        if choices := chunk.get("choices"):
            delta = choices[0]["delta"]
            assert ("role" in delta) == (number == 0)
            assert number == 0 or delta.get("content") != ""
            text += delta.get("content") or ""
        elif usage := chunk.get("usage"):
            assert usage["completion_tokens"] == SIZE
    assert text == TEXT
    assert usage


def test_vllm_bench_reads_the_model_list_and_embeds(embed_pool: Pool) -> None:
    first = embed_pool.get("/v1/models").json()["data"][0]
    assert (first["id"], first["root"]) == ("sim", "sim")
    for value in (TEXT, [TEXT, "short"], "long " * 1000):
        payload = {"model": first["id"], "input": value, "truncate_prompt_tokens": -1}
        answer = embed_pool.post(EMBEDDINGS, payload)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["prompt_tokens"] > 0
        binary = embed_pool.post(EMBEDDINGS, {**payload, "encoding_format": "bytes"})
        assert json.loads(binary.headers["metadata"])["usage"] == answer.json()["usage"]
        bare = embed_pool.post(EMBEDDINGS, {**payload, "encoding_format": "bytes_only"})
        assert bare.content == binary.content


# ---- sglang.bench_serving ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_sglang_bench_finds_its_tokens_in_completions(echo_pool: Pool, stream: bool) -> None:
    """It looks at choices[0] of every event: one without choices would fail the run."""
    payload = {
        "model": "sim",
        "prompt": TEXT,
        "best_of": 1,
        "max_tokens": SIZE,
        "stream": stream,
        "temperature": 0.0,
        "ignore_eos": True,
        "lora_path": None,
        "return_routed_experts": False,
        "logprob_start_len": -1,
    }
    response = echo_pool.post(COMPLETIONS, payload, authorization="sk-bare-key")
    if stream:
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks(response)) == TEXT
    else:
        assert response.json()["choices"][0]["text"] == TEXT


@pytest.mark.parametrize("stream", [False, True])
def test_sglang_bench_finds_its_tokens_in_chats(echo_pool: Pool, stream: bool) -> None:
    payload = {
        "model": "sim",
        "messages": [{"role": "user", "content": TEXT}],
        "max_completion_tokens": SIZE,
        "stream": stream,
        "temperature": 0.0,
        "ignore_eos": True,
        "lora_path": None,
        "return_routed_experts": False,
    }
    response = echo_pool.post(CHAT, payload, **{"x-smg-routing-key": "user-1"})
    if stream:
        deltas = [chunk.get("choices", [{}])[0].get("delta", {}) for chunk in chunks(response)]
        assert "".join(delta.get("content", "") or "" for delta in deltas) == TEXT
        assert all((chunk.get("usage") or {}).get("completion_tokens", 0) == 0 for chunk in chunks(response))
    else:
        assert response.json()["choices"][0]["message"]["content"] == TEXT
        assert response.json()["usage"]["completion_tokens"] == SIZE


def test_sglang_bench_embeds(embed_pool: Pool) -> None:
    assert embed_pool.post(EMBEDDINGS, {"input": TEXT, "model": "sim"}).json()["usage"]["prompt_tokens"] == SIZE


# ---- guidellm ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_guidellm_gets_usage_in_every_chunk_and_stop_may_be_null(echo_pool: Pool, path: str) -> None:
    assert echo_pool.get("/health").is_success
    body: dict[str, Any] = {
        "model": "sim",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "stop": None,
        "ignore_eos": True,
    }
    if path == CHAT:
        body |= {
            "max_completion_tokens": SIZE,
            "messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}],
        }
    else:
        body |= {"max_tokens": SIZE, "prompt": TEXT}
    got = chunks(echo_pool.post(path, body))
    counts = [chunk["usage"]["completion_tokens"] for chunk in got]
    assert counts == sorted(counts)
    assert counts[-1] == SIZE
    assert all(chunk["id"] == got[0]["id"] for chunk in got)


def test_guidellm_replays_a_conversation_with_tools_that_are_switched_off(echo_pool: Pool) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": '{"q": 1}'}}
    body = {
        "model": "sim",
        "messages": [
            {"role": "system", "content": "Prefix."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": '{"status": "ok"}'},
        ],
        "tools": [{"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}],
        "tool_choice": "none",
        "max_completion_tokens": 100,
    }
    answer = echo_pool.post(CHAT, body)
    assert answer.json()["choices"][0]["message"]["content"] == 'Prefix.Hi{"status": "ok"}'


# ---- aiperf and genai-perf -----------------------------------------------------------------------------------------


def test_aiperf_sends_its_prompts_as_lists(echo_pool: Pool, embed_pool: Pool) -> None:
    payload = {"prompt": [TEXT], "model": "sim", "stream": True, "max_tokens": SIZE}
    got = chunks(echo_pool.post(COMPLETIONS, payload))
    assert {chunk["object"] for chunk in got} == {"text_completion"}
    assert "".join(chunk["choices"][0].get("text") or "" for chunk in got) == TEXT
    data = embed_pool.post(EMBEDDINGS, {"model": "sim", "input": [TEXT]}).json()["data"]
    assert [item["object"] for item in data] == ["embedding"]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("stream", [False, True])
def test_aiperf_chats_with_a_system_message_and_either_name_for_the_limit(
    echo_pool: Pool, stream: bool, name: str
) -> None:
    payload: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "user", "content": TEXT},
        ],
        "model": "sim",
        "stream": stream,
        name: 100,
        "min_tokens": 1,
        "ignore_eos": False,
    }
    if stream:
        payload["stream_options"] = {"include_usage": True}
        got = chunks(echo_pool.post(CHAT, payload))
        assert {chunk["object"] for chunk in got} == {"chat.completion.chunk"}
        assert got[-1]["choices"] == []
        assert got[-1]["usage"]["completion_tokens"] > 0
        assert all(chunk["usage"] is None for chunk in got[:-1])
    else:
        answer = echo_pool.post(CHAT, payload).json()
        assert (answer["object"], answer["choices"][0]["message"]["content"]) == ("chat.completion", f"ab{TEXT}")


# ---- langchain, litellm, llama-index, Open WebUI, lm-eval -----------------------------------------------------------


def test_langchain_streams_with_usage(echo_pool: Pool) -> None:
    payload = {
        "messages": [{"content": TEXT, "role": "user"}],
        "model": "sim",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.7,
        "max_completion_tokens": 100,
        "n": 1,
        "stop": None,
    }
    got = chunks(echo_pool.post(CHAT, payload))
    assert got[-1]["usage"]["total_tokens"] == got[-1]["usage"]["prompt_tokens"] + got[-1]["usage"]["completion_tokens"]


def test_langchain_binds_tools(echo_pool: Pool) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {"properties": {"a": {"type": "integer"}}, "required": ["a"], "type": "object"},
            "strict": True,
        },
    }
    body = {
        "messages": [{"role": "user", "content": "1+1?"}],
        "model": "sim",
        "tools": [tool],
        "parallel_tool_calls": False,
    }
    assert echo_pool.post(CHAT, body).status_code == 200


def test_langchains_default_embeddings_are_told_that_their_ids_are_another_models(embed_pool: Pool) -> None:
    """Its OpenAIEmbeddings sends cl100k ids unless it is told not to: a vector of them would be nonsense."""
    wrong = {"input": [[9906, 1917], [100_257]], "model": "sim", "encoding_format": "base64"}
    response = embed_pool.post(EMBEDDINGS, wrong)
    assert response.status_code == 400
    assert "token id" in response.json()["error"]["message"]
    right = {"input": ["Hello world", "Hi"], "model": "sim", "encoding_format": "base64"}
    data = embed_pool.post(EMBEDDINGS, right).json()["data"]
    assert [len(base64.b64decode(item["embedding"])) for item in data] == [4 * 384] * 2


def test_litellm_sends_its_own_extras_and_metadata(echo_pool: Pool) -> None:
    payload = {
        "model": "sim",
        "messages": [{"role": "user", "content": TEXT}],
        "user": "someone",
        "metadata": {"trace": "1"},
        "stream": False,
        "extra_headers": {},
        "drop_params": True,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "seed": 42,
        "response_format": {"type": "text"},
        "tool_choice": None,
        "tools": None,
        "functions": None,
        "function_call": None,
    }
    assert echo_pool.post(CHAT, payload).json()["choices"][0]["message"]["content"] == TEXT


def test_open_webui_lists_models_and_streams(echo_pool: Pool) -> None:
    assert [model["id"] for model in echo_pool.get("/v1/models").json()["data"]] == ["sim"]
    payload = {
        "stream": True,
        "model": "sim",
        "messages": [{"role": "user", "content": TEXT}],
        "params": {},
        "features": {"web_search": False},
        "session_id": "abc",
        "chat_id": "def",
        "id": "ghi",
        "background_tasks": {"title_generation": True},
        "stream_options": {"include_usage": True},
    }
    assert chunks(echo_pool.post(CHAT, payload))[-1]["usage"]["completion_tokens"] > 0


def test_lm_eval_scores_a_prompt_of_ids(echo_pool: Pool) -> None:
    ids = list(b"The answer is 42")
    payload = {
        "model": "sim",
        "prompt": [ids, ids[:5]],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    answer = echo_pool.post(COMPLETIONS, payload).json()
    for choice, prompt in zip(sorted(answer["choices"], key=lambda one: one["index"]), (ids, ids[:5]), strict=True):
        logprobs = choice["logprobs"]
        assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == len(prompt) + 1
        assert logprobs["token_logprobs"][0] is None
        assert all(value is not None for value in logprobs["token_logprobs"][1:])
        for token, tops in list(zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True))[1:]:
            assert token in tops
    generated = {"model": "sim", "prompt": [ids], "max_tokens": 5, "temperature": 0.0, "stop": ["\n\n"], "seed": 1234}
    assert echo_pool.post(COMPLETIONS, generated).json()["choices"][0]["text"] == "The a"


# ---- the gateway and the load tools' other habits ------------------------------------------------------------------


def test_a_gateway_may_name_rank_zero_of_a_pool_that_has_one_engine(echo_pool: Pool) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "routed_dp_rank": 0,
        "data_parallel_rank": 0,
        "bootstrap_host": None,
        "bootstrap_room": None,
        "rid": "3f2c",
    }
    headers = {"x-data-parallel-rank": "0", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "x-smg-routing-key": "k"}
    assert echo_pool.post(CHAT, body, **headers).status_code == 200
    refused = echo_pool.post(CHAT, {**body, "routed_dp_rank": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "routed_dp_rank")


def test_a_connection_that_is_kept_serves_one_request_after_another(echo_pool: Pool) -> None:
    with httpx.Client(base_url=echo_pool.url, limits=httpx.Limits(max_connections=1)) as client:
        ports: set[int] = set()
        for _ in range(50):
            response = client.post(CHAT, json={"messages": [{"role": "user", "content": "Hi"}]})
            assert response.status_code == 200
            ports.add(response.extensions["network_stream"].get_extra_info("client_addr")[1])
    assert len(ports) == 1


# ---- the official client -------------------------------------------------------------------------------------------


def test_the_official_client_sends_everything_it_knows(echo_pool: Pool) -> None:
    answer = echo_pool.openai.chat.completions.create(
        model="sim",
        messages=[
            {"role": "developer", "content": "D", "name": "boss"},
            {"role": "user", "content": [{"type": "text", "text": "U"}]},
        ],
        frequency_penalty=0.1,
        logit_bias={"5": 1},
        logprobs=True,
        max_completion_tokens=9,
        metadata={"a": "b"},
        modalities=["text"],
        n=2,
        prediction={"type": "content", "content": "x"},
        presence_penalty=0.1,
        prompt_cache_key="k",
        reasoning_effort="low",
        response_format={"type": "text"},
        safety_identifier="s",
        seed=7,
        service_tier="auto",
        stop=["never"],
        store=False,
        temperature=0.5,
        tool_choice="none",
        tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
        top_logprobs=2,
        top_p=0.9,
        user="u",
        verbosity="low",
    )
    assert [choice.message.content for choice in answer.choices] == ["DU", "DU"]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [len(token.top_logprobs) for token in logprobs.content] == [2] * len(logprobs.content)


def test_the_official_client_gets_exceptions_it_knows(echo_pool: Pool) -> None:
    create = echo_pool.openai.chat.completions.create
    with pytest.raises(openai.BadRequestError) as bad:
        create(model="sim", messages=[{"role": "user", "content": "x" * 30_000}])
    assert (bad.value.code, bad.value.param) == ("context_length_exceeded", "messages")
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="other", messages=[{"role": "user", "content": "Hi"}])
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        echo_pool.openai.images.generate(prompt="x")
    with pytest.raises(openai.BadRequestError) as none:
        create(model="sim", messages=[{"role": "user", "content": "Hi"}], response_format={"type": "json_object"})
    assert none.value.param == "response_format"


def test_the_official_client_reads_embeddings_in_its_own_format(embed_pool: Pool) -> None:
    by_default = embed_pool.openai.embeddings.create(model="sim", input=["Hi", TEXT])
    as_floats = embed_pool.openai.embeddings.create(model="sim", input=["Hi", TEXT], encoding_format="float")
    for left, right in zip(by_default.data, as_floats.data, strict=True):
        assert left.embedding == pytest.approx(right.embedding, abs=1e-6)
    assert by_default.usage.prompt_tokens == as_floats.usage.prompt_tokens
    shortened = embed_pool.openai.embeddings.create(model="sim", input="Hi", dimensions=8)
    assert len(shortened.data[0].embedding) == 8
    ids = embed_pool.openai.embeddings.create(model="sim", input=[[72, 105], [33]])
    assert ids.data[0].embedding == by_default.data[0].embedding


def test_the_official_client_streams_completions_of_many_prompts(echo_pool: Pool) -> None:
    texts: dict[int, str] = {}
    stream = echo_pool.openai.completions.create(
        model="sim", prompt=["one", "two", TEXT], stream=True, n=2, max_tokens=SIZE
    )
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert texts == {0: "one", 1: "one", 2: "two", 3: "two", 4: TEXT, 5: TEXT}

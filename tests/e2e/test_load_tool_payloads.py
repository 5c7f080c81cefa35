"""What the load tools send, to the letter; and that they find what they read. As in test_client_payloads.py."""

import json
from typing import Any

import pytest

from tests.e2e.payloads import CHAT, COMPLETIONS, EMBEDDINGS, SIZE, TEXT, chunks
from tests.pool import Pool

pytestmark = pytest.mark.e2e


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

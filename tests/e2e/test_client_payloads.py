"""What the official clients and the frameworks send, to the letter; and that they find what they read.

Payloads and readers were taken from the tools' own sources; a request is written as they write it, `null` included.
"""

import base64

import httpx
import openai
import pytest

from tests.e2e.payloads import CHAT, COMPLETIONS, EMBEDDINGS, SIZE, TEXT, chunks
from tests.pool import Pool

pytestmark = pytest.mark.e2e


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

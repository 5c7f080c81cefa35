"""Bad input: each is a 4xx that says where it hurts, in OpenAI's shape, and the next request is served as ever.

After most refusals the same connection asks again: a refusal leaves keep-alive alone.
"""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import StartPool
from tests.e2e.refusals import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    EMBEDDINGS,
    GENERATING,
    HI,
    TOKENIZE,
    error_of,
    good,
    one_connection,
    post,
    refused,
)

pytestmark = pytest.mark.e2e

# ---- types ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 5}, "model"),
        ({"n": "1"}, "n"),
        ({"n": True}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": [1]}, "n"),
        ({"n": {}}, "n"),
        ({"stream": 1}, "stream"),
        ({"stream": "true"}, "stream"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": []}, "top_p"),
        ({"seed": "7"}, "seed"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": 5}, "stop"),
        ({"stop": {}}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"stop": ["a", None]}, "stop[1]"),
        ({"logit_bias": []}, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, "logit_bias[...]"),
        ({"logit_bias": {"5": None}}, "logit_bias[...]"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": ["5"]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [5, True]}, "stop_token_ids[1]"),
        ({"stream_options": []}, "stream_options"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice"),
        ({"request_id": 5}, "request_id"),
        ({"rid": [5]}, "rid[0]"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"lora_path": 5}, "lora_path"),
        ({"priority": "high"}, "priority"),
        ({"truncation_side": 5}, "truncation_side"),
        ({"ignore_eos": "yes"}, "ignore_eos"),
    ],
)
def test_a_field_of_the_wrong_type_is_a_400_with_its_path(
    echo_client: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    refused(
        echo_client, path, good(path, **fields), param, "Expected" if param != "response_format.type" else "required"
    )


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"max_tokens": 4.0, "n": 1.0, "seed": 7.0, "top_k": -1.0, "stop_token_ids": [5.0, 6]}),
        (
            CHAT,
            {"max_completion_tokens": 4.0, "top_logprobs": 2.0, "logprobs": True, "input_ids": [72.0], "messages": []},
        ),
        (COMPLETIONS, {"max_tokens": 4.0, "logprobs": 1.0, "prompt": [72.0, 105.0], "min_tokens": 0.0}),
        (TOKENIZE, {"prompt": "Hi"}),
        (DETOKENIZE, {"tokens": [72.0, 105]}),
    ],
)
def test_whole_numbers_may_be_written_as_floats(echo_client: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    assert post(echo_client, path, good(path, **fields)).status_code == 200


def test_a_float_that_is_whole_stays_a_float_where_no_integer_is_asked_for(start_pool: StartPool) -> None:
    flags = ("--api-server-count", "1", "--chat-template", "{{ value }}")
    with start_pool(*flags, engine=["--mode", "echo"]) as pool:
        body = {"messages": HI, "max_tokens": 9.0, "chat_template_kwargs": {"value": 1.0}}
        assert pool.post(CHAT, body).json()["choices"][0]["message"]["content"] == "1.0"


@pytest.mark.parametrize("path", GENERATING)
def test_null_is_the_same_as_nothing(echo_client: httpx.Client, path: str) -> None:
    names = ["model", "n", "stream", "stream_options", "stop", "temperature", "top_p", "seed", "presence_penalty"]
    names += ["frequency_penalty", "logit_bias", "logprobs", "response_format", "top_k", "min_p", "user", "best_of"]
    names += ["repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "truncate_prompt_tokens", "rid"]
    names += ["lora_path", "priority", "cache_salt", "request_id", "skip_special_tokens", "echo", "tools", "suffix"]
    assert post(echo_client, path, good(path, **dict.fromkeys(names))).status_code == 200


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("name", ["n", "max_tokens", "seed", "top_k", "min_tokens", "priority", "prompt_logprobs"])
@pytest.mark.parametrize("digits", [20, 100, 4000, 10_000])
def test_an_integer_of_any_size_is_read_and_refused(
    echo_client: httpx.Client, path: str, name: str, digits: int
) -> None:
    body = json.dumps(good(path)).encode()[:-1] + b', "%s": %s}' % (name.encode(), b"9" * digits)
    refused(echo_client, path, body, name)


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("number", [b"1e400", b"-1e400", b"9" * 400])
def test_a_number_that_is_no_float_is_a_400(echo_client: httpx.Client, path: str, number: bytes) -> None:
    body = json.dumps(good(path)).encode()[:-1] + b', "temperature": %s}' % number
    refused(echo_client, path, body, "temperature", "out of range")


# ---- models (vllm#58025) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE])
@pytest.mark.parametrize("model", ["other", "SIM", "sim ", "sim:adapter", "x" * 100_000, "\ufffd😀"])
def test_an_unknown_model_is_a_404_that_lists_the_names(echo_client: httpx.Client, path: str, model: str) -> None:
    error = refused(echo_client, path, good(path, model=model), "model", "'sim'" if len(model) < 100 else "", 404)
    assert (error["type"], error["code"]) == ("NotFoundError", "model_not_found")


def test_an_unknown_model_is_a_404_for_embeddings_too(embed_client: httpx.Client) -> None:
    error = refused(embed_client, EMBEDDINGS, {"input": "Hi", "model": "other"}, "model", "'sim'", 404)
    assert error["code"] == "model_not_found"


def test_an_unknown_model_is_a_404_where_one_is_looked_up(echo_client: httpx.Client) -> None:
    for name in ("other", "a/b", "%F0%9F%8E%89", "", "x" * 10_000):
        error = error_of(echo_client.get(f"/v1/models/{name}"), 404)
        assert (error["param"], error["code"]) == ("model", "model_not_found")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE])
@pytest.mark.parametrize("model", [None, ""])
def test_without_a_model_the_first_name_is_meant(echo_client: httpx.Client, path: str, model: str | None) -> None:
    answer = post(echo_client, path, good(path, model=model))
    assert answer.status_code == 200
    assert answer.json().get("model", "sim") == "sim"


# ---- errors themselves (llama.cpp#9210) ----------------------------------------------------------------------------


def test_an_error_never_quotes_a_clients_text_at_length(echo_client: httpx.Client) -> None:
    long = "secret " * 100_000
    for path, body in (
        (CHAT, good(CHAT, model=long)),
        (CHAT, good(CHAT, reasoning_effort=long)),
        (CHAT, good(CHAT, truncation_side=long)),
        (CHAT, good(CHAT, response_format={"type": long})),
        (CHAT, {"messages": [{"role": long}]}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": long}]}]}),
        (CHAT, good(CHAT, tools=[{"type": long}])),
        (CHAT, good(CHAT, logit_bias={long: 1})),
        (CHAT, good(CHAT, chat_template_kwargs={"messages": long})),
        (TOKENIZE, {"prompt": "a", "model": long}),
    ):
        response = post(echo_client, path, body)
        assert response.status_code in (400, 404)
        assert len(response.content) < 2000


def test_an_error_can_always_be_written_down(echo_client: httpx.Client) -> None:
    for text in ('"quoted"', "\\", "\n\r\t\x00\x1f\x7f", "\u2028", "😀", "\ufffd", "</script>"):
        error = error_of(post(echo_client, CHAT, good(CHAT, model=text)), 404)
        assert text in error["message"]


def test_strict_fields_refuse_what_is_not_known_and_take_all_that_is(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1", "--strict-fields") as pool, one_connection(pool) as client:
        for path in (CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE):
            refused(client, path, good(path, frobnicate=1), "frobnicate", "Unknown field: frobnicate")
            error_of(post(client, path, good(path, **{"x" * 100_000: 1})))
            error_of(post(client, path, json.dumps(good(path)).encode()[:-1] + rb', "\ud83d": 1}'))
        for fields in ({"user": "me"}, {"metadata": {"a": "b"}}, {"store": False}, {"service_tier": "auto"}):
            assert post(client, CHAT, good(CHAT, **fields)).status_code == 200
        assert post(client, CHAT, good(CHAT, parallel_tool_calls=False)).status_code == 200


def test_unknown_fields_are_ignored_otherwise(echo_client: httpx.Client) -> None:
    for path in (CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE):
        assert post(echo_client, path, good(path, frobnicate={"a": [1, 2, {}]})).status_code == 200


# ---- anything else -------------------------------------------------------------------------------------------------

WORDS = ["", "a", "auto", "none", "user", "assistant", "tool", "function", "text", "\x00", "<|im_end|>", "5"]
KEYS = ["role", "content", "type", "text", "function", "name", "tool_calls", "arguments", "parameters", "json_schema"]
FIELDS = [
    "messages",
    "prompt",
    "tokens",
    "n",
    "stop",
    "tools",
    "stream",
    "logprobs",
    "logit_bias",
    "max_tokens",
    "echo",
]
FIELDS += [
    "chat_template_kwargs",
    "documents",
    "truncate_prompt_tokens",
    "input_ids",
    "response_format",
    "seed",
    "top_p",
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats(0, 3) | st.sampled_from(WORDS) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": ANYTHING})
)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE])
@given(document=st.dictionaries(st.sampled_from(FIELDS), ANYTHING | MESSAGES, max_size=4), is_good=st.booleans())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_that_a_client_can_send_is_more_than_a_4xx(
    echo_client: httpx.Client, path: str, document: dict[str, Any], is_good: bool
) -> None:
    response = post(echo_client, path, good(path, **document) if is_good else document)
    assert response.status_code == 200 or 400 <= response.status_code < 500, response.text
    if response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n")
        assert '"error"' not in response.text

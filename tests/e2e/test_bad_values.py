"""Values outside of their limits, and wishes that this engine cannot fulfil."""

from typing import Any

import httpx
import pytest

from tests.e2e.refusals import (
    CHAT,
    COMPLETIONS,
    CONTEXT,
    GENERATING,
    VOCABULARY,
    cpu_seconds,
    error_of,
    good,
    post,
    refused,
)
from tests.pool import Pool

pytestmark = pytest.mark.e2e

Case = tuple[dict[str, Any], str, str]
"""Fields that spoil a good request, the `param` of the answer, and words of its message."""


OUT_OF_RANGE: list[Case] = [
    ({"n": 0}, "n", "at least 1 and at most 128, not 0"),
    ({"n": -1}, "n", "not -1"),
    ({"n": 129}, "n", "at most 128"),
    ({"n": 5_000_000}, "n", "at most 128"),
    ({"temperature": -0.1}, "temperature", "at least 0"),
    ({"top_p": 0}, "top_p", "above 0"),
    ({"top_p": 1.01}, "top_p", "at most 1"),
    ({"top_k": -2}, "top_k", "at least -1"),
    ({"min_p": -1}, "min_p", "at least 0"),
    ({"min_p": 2}, "min_p", "at most 1"),
    ({"presence_penalty": 2.1}, "presence_penalty", "at most 2"),
    ({"frequency_penalty": -2.1}, "frequency_penalty", "at least -2"),
    ({"repetition_penalty": 0}, "repetition_penalty", "above 0"),
    ({"repetition_penalty": -1}, "repetition_penalty", "above 0"),
    ({"seed": 2**63}, "seed", "at most 9223372036854775807"),
    ({"seed": -(2**63) - 1}, "seed", "at least -9223372036854775808"),
    ({"priority": 2**63}, "priority", "at most"),
    ({"min_tokens": -1}, "min_tokens", "at least 0"),
    ({"min_tokens": 6}, "min_tokens", "more than the 5 tokens"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "at most 20"),
    ({"prompt_logprobs": -1}, "prompt_logprobs", "at least 0"),
    ({"stop": ["x"] * 65}, "stop", "has 65 strings; at most 64"),
    ({"stop": ["x"] * 500_000}, "stop", "has 500000 strings"),
    ({"stop": "x" * 1025}, "stop", "1024 characters"),
    ({"stop": ["ok", "x" * 1_000_000]}, "stop", "1024 characters"),
    ({"stop": ""}, "stop", "empty string"),
    ({"stop": [""]}, "stop", "empty string"),
    ({"stop": ["a", ""]}, "stop", "empty string"),
    ({"logit_bias": {str(number): 1 for number in range(1025)}}, "logit_bias", "has 1025 entries; at most 1024"),
    ({"logit_bias": {str(number): 1 for number in range(50_000)}}, "logit_bias", "has 50000 entries"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "at most 100"),
    ({"logit_bias": {"5": -1000}}, "logit_bias", "at least -100"),
    ({"logit_bias": {"five": 1}}, "logit_bias", "token ids, not five"),
    ({"logit_bias": {"": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"5.0": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"-5": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"５": 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "token ids"),
    ({"logit_bias": {"99999999": 5}}, "logit_bias", f"ids are 0 to {VOCABULARY - 1}"),
    ({"stop_token_ids": [10**7]}, "stop_token_ids", f"ids are 0 to {VOCABULARY - 1}"),
    ({"stop_token_ids": [VOCABULARY]}, "stop_token_ids", f"token id {VOCABULARY};"),
    ({"stop_token_ids": [-1]}, "stop_token_ids", "token id -1;"),
    ({"stop_token_ids": [2**63]}, "stop_token_ids", "token id 9223372036854775808;"),
    ({"stop_token_ids": list(range(1025))}, "stop_token_ids", "has 1025 entries; at most 1024"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "-1 or at least 1"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "-1 or at least 1"),
    ({"truncate_prompt_tokens": CONTEXT + 1}, "truncate_prompt_tokens", f"more than this model's {CONTEXT}"),
    ({"truncation_side": "middle"}, "truncation_side", "left or right"),
    ({"request_id": "x" * 257}, "request_id", "at most 256"),
    ({"rid": "x" * 1_000_000}, "rid", "at most 256"),
    ({"rid": ["a", "b"]}, "rid", "one string"),
    ({"cache_salt": "x" * 1025}, "cache_salt", "at most 1024"),
    ({"extra_key": "x" * 1025}, "extra_key", "at most 1024"),
    ({"lora_path": "adapter"}, "lora_path", "has no adapters"),
    ({"lora_path": [None, "adapter"]}, "lora_path", "one adapter"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream to be true"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "streamed"),
]


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(("fields", "param", "says"), OUT_OF_RANGE)
def test_a_value_outside_of_its_limits_is_a_400_that_names_the_limit(
    echo_client: httpx.Client, path: str, fields: dict[str, Any], param: str, says: str
) -> None:
    refused(echo_client, path, good(path, **fields), param, says)


@pytest.mark.parametrize(
    ("path", "fields", "param", "says"),
    [
        (CHAT, {"max_tokens": 0}, "max_tokens", "at least 1"),
        (CHAT, {"max_tokens": -5}, "max_tokens", "at least 1"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens", "at least 1"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "at most 20"),
        (CHAT, {"logprobs": True, "top_logprobs": 10**9}, "top_logprobs", "at most 20"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs", "at least 0"),
        (CHAT, {"top_logprobs": 2}, "top_logprobs", "logprobs to be true"),
        (CHAT, {"logprobs": False, "top_logprobs": 2}, "top_logprobs", "logprobs to be true"),
        (CHAT, {"logprobs": 2}, "logprobs", "Expected `bool"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens", "at least 1"),
        (COMPLETIONS, {"max_tokens": -1, "echo": True}, "max_tokens", "at least 0"),
        (COMPLETIONS, {"logprobs": 21}, "logprobs", "at most 20"),
        (COMPLETIONS, {"logprobs": -1}, "logprobs", "at least 0"),
        (COMPLETIONS, {"logprobs": True}, "logprobs", "Expected `int"),
        (COMPLETIONS, {"best_of": 2}, "best_of", "not supported"),
        (COMPLETIONS, {"prompt": ["a"] * 2049}, "prompt", "has 2049 items; at most 2048"),
        (COMPLETIONS, {"prompt": ["a"] * 100, "n": 100}, "n", "10000 choices; at most 2048"),
    ],
)
def test_each_dialects_own_limits_are_named_too(
    echo_client: httpx.Client, path: str, fields: dict[str, Any], param: str, says: str
) -> None:
    refused(echo_client, path, good(path, **fields), param, says)


def test_limits_are_checked_before_any_work_on_the_items(echo_pool: Pool, echo_client: httpx.Client) -> None:
    """Half a million stop strings once cost a minute: here their count costs as much as reading them."""
    began = cpu_seconds(echo_pool)
    for fields in ({"stop": ["ab"] * 500_000}, {"logit_bias": {str(number): 1 for number in range(500_000)}}):
        error_of(post(echo_client, COMPLETIONS, good(COMPLETIONS, **fields)))
    assert cpu_seconds(echo_pool) - began < 2


def test_a_tiny_request_for_millions_of_choices_costs_no_memory(echo_pool: Pool, echo_client: httpx.Client) -> None:
    def size() -> int:
        return sum(process["uss_bytes"] for process in echo_pool.pool()["processes"])

    before = size()
    for _ in range(20):
        error_of(post(echo_client, CHAT, good(CHAT, n=5_000_000)))
    assert size() - before < 16 * 2**20


def test_as_much_as_the_limits_allow_is_served(echo_client: httpx.Client) -> None:
    fields: dict[str, Any] = {
        "stop": [f"{number:01024}" for number in range(64)],
        "logit_bias": {str(number): 0 for number in range(VOCABULARY)},
        "logprobs": 20,
        "n": 128,
        "max_tokens": 1,
    }
    answer = post(echo_client, COMPLETIONS, good(COMPLETIONS, **fields))
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 128


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}, "response_format"),
        ({"structured_outputs": {"json": {"type": "object"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": '{"type": "object"}'}}, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": "root ::= x"}}, "structured_outputs.grammar"),
        ({"regex": "a+"}, "regex"),
        ({"regex": "foo**"}, "regex"),
        ({"ebnf": "root ::= x"}, "ebnf"),
    ],
)
def test_a_constraint_that_the_engine_cannot_keep_is_a_400_under_the_clients_own_name(
    echo_client: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    refused(echo_client, path, good(path, **fields), param, "The engine (sim) cannot honour")


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "not xml"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "an object"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "cannot honour"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
            "response_format.json_schema.schema",
            "not valid JSON",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
            "response_format.json_schema.schema",
            "an object",
        ),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "an object"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "1 to 1024"),
        ({"structured_outputs": {"choice": ["a"] * 1025}}, "structured_outputs.choice", "1 to 1024"),
        ({"structured_outputs": {"structural_tag": {}}}, "structured_outputs.structural_tag", "cannot honour"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice", "Only one"),
        ({"regex": "a", "ebnf": "b"}, "ebnf", "Only one"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "regex", "Only one"),
    ],
)
def test_a_constraint_that_is_none_is_a_400(
    echo_client: httpx.Client, fields: dict[str, Any], param: str, says: str
) -> None:
    refused(echo_client, CHAT, good(CHAT, **fields), param, says)


def test_plain_text_is_no_constraint(echo_client: httpx.Client) -> None:
    assert post(echo_client, CHAT, good(CHAT, response_format={"type": "text"})).status_code == 200
    assert post(echo_client, CHAT, good(CHAT, structured_outputs={})).status_code == 200

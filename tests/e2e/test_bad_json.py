"""Bodies that are no JSON, or JSON that no client should send (llama.cpp#6396, colibri#1589): a 400 that says why."""

from typing import Any

import httpx
import pytest

from tests.conftest import StartPool
from tests.e2e.refusals import (
    CHAT,
    COMPLETIONS,
    DETOKENIZE,
    EMBEDDINGS,
    GOOD,
    HI,
    TOKENIZE,
    error_of,
    one_connection,
    post,
    refused,
)
from tests.pool import ECHO_TEMPLATE

pytestmark = pytest.mark.e2e


NO_JSON: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b"  \n", "empty"),
    (b"{", "not valid JSON"),
    (b'{"model": "sim",}', "not valid JSON"),
    (b"{'model': 'sim'}", "not valid JSON"),
    (b'{"n": 1} trailing', "not valid JSON"),
    (b'{"n": NaN}', "not valid JSON"),
    (b'{"n": Infinity}', "not valid JSON"),
    (b'{"n": 01}', "not valid JSON"),
    (b'{"model": "a\x00b"}', "not valid JSON"),
    (b'{"model": "a\nb"}', "not valid JSON"),
    (b'\xef\xbb\xbf{"model": "sim"}', "byte order mark"),
    ('{"model": "sim"}'.encode("utf-16"), "byte order mark"),
    (b'{"model": "\xd6\xd0\xce\xc4"}', "not valid UTF-8"),  # GBK
    (b'{"model": "\xff"}', "not valid UTF-8"),
    (b'{"model": "\xed\xa0\xbd"}', "not valid UTF-8"),  # a surrogate, encoded as if it were a character
    (b'{"model": "\xc0\x80"}', "not valid UTF-8"),  # an overlong NUL
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE])
@pytest.mark.parametrize(("body", "says"), NO_JSON)
def test_a_body_that_is_no_json_is_a_400_that_says_why(
    echo_client: httpx.Client, path: str, body: bytes, says: str
) -> None:
    refused(echo_client, path, body, None, says)


@pytest.mark.parametrize(("body", "says"), NO_JSON)
def test_embeddings_take_no_other_json_than_the_rest(embed_client: httpx.Client, body: bytes, says: str) -> None:
    refused(embed_client, EMBEDDINGS, body, None, says)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE])
@pytest.mark.parametrize("body", [b"[]", b"null", b"5", b'"text"', b"true", b"1.5"])
def test_json_that_is_no_object_is_a_400(echo_client: httpx.Client, path: str, body: bytes) -> None:
    refused(echo_client, path, body, None, "Expected `object`")


@pytest.mark.parametrize("escape", [rb"\ud83d", rb"\ud83d tail", rb"\ude00", rb"\ud83d\ud83d\ude00", rb"\ude00\ud83d"])
@pytest.mark.parametrize(
    ("path", "template"),
    [
        (CHAT, b'{"messages": [{"role": "user", "content": "%s"}]}'),
        (CHAT, b'{"messages": [{"role": "user", "content": "Hi", "name": "%s"}]}'),
        (CHAT, b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "%s"}]}]}'),
        (CHAT, b'{"messages": [{"role": "user", "content": "Hi"}], "stop": ["%s"]}'),
        (CHAT, b'{"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"%s": 1}}'),
        (CHAT, b'{"messages": [{"role": "user", "content": "Hi"}], "stream": true, "model": "%s"}'),
        (COMPLETIONS, b'{"prompt": "%s"}'),
        (COMPLETIONS, b'{"prompt": ["Hi", "%s"]}'),
        (COMPLETIONS, b'{"prompt": "Hi", "logit_bias": {"%s": 1}}'),
        (TOKENIZE, b'{"prompt": "%s"}'),
        (TOKENIZE, b'{"messages": [{"role": "user", "content": "%s"}]}'),
    ],
)
def test_a_lone_surrogate_is_a_400_and_no_500(
    echo_client: httpx.Client, path: str, template: bytes, escape: bytes
) -> None:
    error = refused(echo_client, path, template % escape, None)
    assert "lone surrogate" in error["message"]


def test_a_lone_surrogate_inside_of_a_tool_calls_arguments_is_found_too(echo_client: httpx.Client) -> None:
    """The arguments are JSON within JSON, read by another reader."""
    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": '{"a": "\\ud83d"}'}}
    template = "{{ messages[0].tool_calls[0].function.arguments.a }}"
    body = {"messages": [{"role": "assistant", "tool_calls": [call]}], "chat_template": template}
    refused(echo_client, CHAT, body, "chat_template")  # not trusted here: the next test has a pool that trusts


def test_what_a_template_makes_of_bad_input_is_a_400(start_pool: StartPool) -> None:
    def body(template: str, **fields: Any) -> dict[str, Any]:
        return {"messages": HI, "chat_template": template, "max_tokens": 1, **fields}

    call = {"type": "function", "id": "1", "function": {"name": "f", "arguments": '{"a": "\\ud83d"}'}}
    calls = [{"role": "assistant", "tool_calls": [call]}]
    flags = ("--api-server-count", "1", "--trust-request-chat-template", "--chat-template", ECHO_TEMPLATE)
    with start_pool(*flags, engine=["--mode", "echo"]) as pool, one_connection(pool) as client:
        arguments = "{{ messages[0].tool_calls[0].function.arguments.a }}"
        refused(client, CHAT, body(arguments, messages=calls), "messages", "lone surrogate")
        refused(client, CHAT, body("{{ raise_exception(" + arguments[3:-3] + ") }}", messages=calls), "messages")
        refused(client, CHAT, body("{{ raise_exception(messages[0].content * 1000000) }}"), "messages", "HiHi")
        refused(client, CHAT, body("{% for %}"), "chat_template", "not valid in line 1")
        refused(client, CHAT, body("{{ 1 / 0 }}"), "messages", "division by zero")
        refused(client, CHAT, body("{{ messages.append(1) }}"), "messages", "fails on this conversation")
        refused(client, CHAT, body("{{ ''.__class__.__mro__ }}"), "messages", "fails on this conversation")
        refused(client, CHAT, body("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "messages")
        refused(client, CHAT, body("{# nothing #}"), "messages", "empty")
        assert post(client, CHAT, body("{{ messages[0].content }}")).status_code == 200


def test_a_paired_surrogate_is_a_character(echo_client: httpx.Client) -> None:
    body = rb'{"messages": [{"role": "user", "content": "\ud83d\ude00 \\ud83d"}]}'
    assert post(echo_client, CHAT, body).json()["choices"][0]["message"]["content"] == "😀 \\ud83d"


def test_nul_is_text(echo_client: httpx.Client) -> None:
    body = rb'{"messages": [{"role": "user", "content": "a\u0000b"}]}'
    assert post(echo_client, CHAT, body).json()["choices"][0]["message"]["content"] == "a\x00b"


def test_of_a_repeated_key_the_last_one_counts(echo_client: httpx.Client) -> None:
    body = b'{"prompt": "first", "max_tokens": 0, "prompt": "last", "max_tokens": 9}'
    assert post(echo_client, COMPLETIONS, body).json()["choices"][0]["text"] == "last"


@pytest.mark.parametrize("depth", [200, 900, 950, 980, 990, 1000, 10_000, 900_000])
@pytest.mark.parametrize(
    "place",
    [
        "messages",
        "content",
        "chat_template_kwargs",
        "tools",
        "response_format",
        "structured_outputs",
        "vllm_xargs",
        "unknown",
        "stop",
        "logit_bias",
    ],
)
def test_json_that_is_nested_too_deeply_is_a_400_wherever_it_is(
    echo_client: httpx.Client, place: str, depth: int
) -> None:
    deep = b"[" * depth + b"]" * depth
    deep_object = b'{"a":' * depth + b"1" + b"}" * depth
    body = {
        "messages": b'{"messages": %s}' % deep,
        "content": b'{"messages": [{"role": "user", "content": %s}]}' % deep,
        "chat_template_kwargs": b'{"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": %s}'
        % deep_object,
        "tools": b'{"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "function", "function": '
        b'{"name": "f", "parameters": %s}}]}' % deep_object,
        "response_format": b'{"messages": [{"role": "user", "content": "Hi"}], "response_format": '
        b'{"type": "json_schema", "json_schema": {"schema": %s}}}' % deep_object,
        "structured_outputs": b'{"messages": [{"role": "user", "content": "Hi"}], "structured_outputs": {"json": %s}}'
        % deep_object,
        "vllm_xargs": b'{"messages": [{"role": "user", "content": "Hi"}], "vllm_xargs": %s}' % deep_object,
        "unknown": b'{"messages": [{"role": "user", "content": "Hi"}], "unknown": %s, "max_tokens": 5.0}' % deep,
        "stop": b'{"messages": [{"role": "user", "content": "Hi"}], "stop": %s}' % deep,
        "logit_bias": b'{"messages": [{"role": "user", "content": "Hi"}], "logit_bias": %s}' % deep_object,
    }[place]
    response = post(echo_client, CHAT, body)
    if place in ("chat_template_kwargs", "tools", "unknown") and depth < 1000:
        assert response.status_code in (200, 400), response.text
    else:
        error_of(response)
    assert post(echo_client, CHAT, GOOD[CHAT]).status_code == 200


def test_a_tool_calls_arguments_that_are_nested_too_deeply_are_a_400(echo_client: httpx.Client) -> None:
    for depth in (500, 900, 990, 2000, 200_000):
        call = {
            "type": "function",
            "id": "1",
            "function": {"name": "f", "arguments": '{"a":' * depth + "1" + "}" * depth},
        }
        response = post(echo_client, CHAT, {"messages": [{"role": "assistant", "tool_calls": [call]}, *HI]})
        assert response.status_code in (200, 400), response.text
        assert response.status_code == 400 or depth < 1000

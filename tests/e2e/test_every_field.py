"""Rules of input that hold in every place of every route's body; a route that is added is tested the day it comes."""

import json
from typing import Any

import httpx
import pytest

from apiserver.http.app import DIALECTS
from tests.e2e.full_requests import FULL, places, with_value
from tests.e2e.refusals import CONTEXT, cpu_seconds, post
from tests.e2e.test_every_route import EMBEDDING, RESPONSES, WITHOUT_GOOD, assert_refused, client_of
from tests.pool import Pool

pytestmark = pytest.mark.e2e

every_route = pytest.mark.parametrize("path", sorted({*DIALECTS, RESPONSES} - WITHOUT_GOOD))
STREAMING = sorted(
    {"/v1/messages", RESPONSES, "/v1/chat/completions", "/v1/completions"} | {"/generate", "/inference/v1/generate"}
)

NO_TEXT = [rb'"\ud83d"', rb'"a\udc00b"', b'"\xff"', b'"\xd6\xd0"', rb'{"\ud83d": 1}']
ODD = [
    b"null",
    b"true",
    b"-1",
    b"0",
    b"1.5",
    b"1e400",
    b"9" * 5000,
    b"18446744073709551616",
    b"10000000",
    b'""',
    rb'"\u0000"',
    b"[]",
    b"{}",
    b"[null]",
    b'["a", [1]]',
    b"[-1]",
    b"[10000000]",
    b'[{"type": "image_url", "image_url": {"url": "x"}}]',
    b"[" * 5000 + b"]" * 5000,
]
LONG = [b'"' + b"y" * 100_000 + b'"', b'{"' + b"k" * 100_000 + b'": 1}']
MOST_ERROR_BYTES = 2000


def status_of(response: httpx.Response, path: str, body: bytes) -> int:
    """Served, or refused in the route's own shape and in few words; nothing else."""
    if response.status_code != 200:
        assert 400 <= response.status_code < 500, (path, body[:300], response.text)
        assert_refused(response, path, response.status_code)
        assert len(response.content) <= MOST_ERROR_BYTES, body[:300]
    return response.status_code


@every_route
def test_what_is_no_text_is_a_400_in_every_place(
    echo_client: httpx.Client, embed_client: httpx.Client, path: str
) -> None:  # colibri#1589, llama.cpp#6396
    client = client_of(path, echo_client, embed_client)
    assert post(client, path, FULL[path]).status_code == 200
    for place in places(FULL[path]):
        for value in NO_TEXT:
            body = with_value(FULL[path], place, value)
            assert status_of(post(client, path, body), path, body) == 400, body


@every_route
def test_no_value_in_any_place_is_more_than_a_4xx_of_few_words(
    echo_client: httpx.Client, embed_client: httpx.Client, path: str
) -> None:  # vllm#9634, vllm#54196, sglang#36856, sglang#4481, llama.cpp#9210
    client = client_of(path, echo_client, embed_client)
    for place in places(FULL[path]):
        for value in ODD + LONG:
            body = with_value(FULL[path], place, value)
            status_of(post(client, path, body), path, body)
    assert post(client, path, FULL[path]).status_code == 200


@pytest.mark.parametrize("path", STREAMING)
def test_what_is_refused_is_refused_before_a_stream_begins(echo_client: httpx.Client, path: str) -> None:
    """llm-d-inference-sim#596, mistral.rs#1874: in a stream of status 200 no client expects an error."""
    assert path not in EMBEDDING
    for place in places(FULL[path]):
        for value in (b"{}", b"-1", b"10000000", b'""'):
            whole = post(echo_client, path, with_value(FULL[path], place, value))
            streamed = post(echo_client, path, with_value(FULL[path], place, value, stream=True))
            if place:
                assert streamed.status_code == whole.status_code, (place, value, streamed.text)
            if streamed.status_code == 200:
                assert streamed.headers["content-type"].startswith("text/event-stream")
                assert not any(line.startswith('data: {"error"') for line in streamed.text.splitlines())


def numbered(tool: dict[str, Any], number: int) -> dict[str, Any]:
    return json.loads(json.dumps(tool).replace('"look"', f'"look{number}"'))


@pytest.mark.parametrize("path", sorted(path for path, body in FULL.items() if "tools" in body))
def test_tools_are_counted_before_any_of_them_is_looked_at(
    echo_pool: Pool, echo_client: httpx.Client, path: str
) -> None:
    """Each was once looked up among the names of all: the square of what a body has room for is minutes."""
    tools = [numbered(FULL[path]["tools"][0], number) for number in range(50_000)]
    began = cpu_seconds(echo_pool)
    response = post(echo_client, path, {**FULL[path], "tools": tools})
    assert "50000 tools; at most 1024" in assert_refused(response, path, 400)
    assert cpu_seconds(echo_pool) - began < 10
    some = post(echo_client, path, {**FULL[path], "tools": tools[:500]})
    assert some.status_code == 200, some.text


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        ("/v1/decisions", {"questions": [{"type": "x", "instructions": "a"}] * 2049}, "1 to 2048 questions"),
        ("/v1/decisions", {"questions": [{"type": "x", "id": "a"}] * 2049}, "1 to 2048 questions"),
        ("/v1/systemone", {"questions": {str(n): {"type": "x"} for n in range(2049)}}, "1 to 2048 questions"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}] * (CONTEXT + 1)}, "fewer than the items"),
    ],
)
def test_questions_and_items_are_counted_before_any_of_them_is_looked_at(
    echo_client: httpx.Client, path: str, fields: dict[str, Any], says: str
) -> None:
    response = post(echo_client, path, {**FULL[path], **fields})
    assert says in assert_refused(response, path, 400)

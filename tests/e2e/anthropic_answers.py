"""The official client of a pool, and a message as it travels: whole and streamed, which must say the same."""

import contextlib
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import anthropic
import httpx

from tests import anthropic_grammar
from tests.pool import Pool

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
VERSION = {"anthropic-version": "2023-06-01"}


@contextlib.contextmanager
def client_of(pool: Pool, *, max_retries: int = 0, **options: Any) -> Iterator[anthropic.Anthropic]:
    options = {"api_key": "none", "timeout": 30.0, **options}
    with anthropic.Anthropic(base_url=pool.url, max_retries=max_retries, **options) as client:
        yield client


@contextlib.asynccontextmanager
async def async_client_of(pool: Pool) -> AsyncGenerator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=pool.url, max_retries=0, api_key="none", timeout=30.0) as client:
        yield client


def says(text: str, **fields: Any) -> dict[str, Any]:
    """A body that makes an echoing engine say this text."""
    return {"model": "sim", "max_tokens": 200, "messages": [{"role": "user", "content": text}], **fields}


def streamed(pool: Pool, body: dict[str, Any], path: str = MESSAGES) -> list[dict[str, Any]]:
    """The documents of a stream. Its grammar is checked, and its headers."""
    response = pool.client.post(path, json={**body, "stream": True}, headers=VERSION)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["request-id"] == response.headers["x-request-id"]
    documents = anthropic_grammar.frames(response.content)
    anthropic_grammar.check(documents)
    return documents


def both(pool: Pool, body: dict[str, Any]) -> dict[str, Any]:
    """Ask whole and streamed; returns the answer after checking that they are equal but for the id."""
    response = pool.client.post(MESSAGES, json=body, headers=VERSION)
    assert response.status_code == 200, response.text
    answer = anthropic_grammar.read(response.json())
    assert anthropic_grammar.folded(streamed(pool, body)) | {"id": answer["id"]} == answer
    return answer


def text_of(answer: dict[str, Any]) -> str:
    return "".join(block["text"] for block in answer["content"])


def error_of(response: httpx.Response, status: int, kind: str) -> str:
    """The message of an error in Anthropic's form, whoever it was that refused."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert set(document) == {"type", "error", "request_id"}
    assert document["type"] == "error"
    assert document["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert set(document["error"]) == {"type", "message"}
    assert document["error"]["type"] == kind
    assert 0 < len(document["error"]["message"]) <= 1000
    return document["error"]["message"]

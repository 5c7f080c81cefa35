"""What the tests of clients' payloads share: the routes, a text, and how a client reads a stream."""

import json
from typing import Any

import httpx

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

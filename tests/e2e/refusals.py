"""What a refusal looks like, and a good request of each route to follow it with."""

import json
from typing import Any

import httpx

from tests.event_streams import checking_client
from tests.pool import Pool
from tests.raw_http import RawConnection, Reply, request

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
GENERATE, TOKEN_GENERATE = "/generate", "/inference/v1/generate"
DECIDING = {"type": "choice", "instructions": "Which?", "choices": [{"value": "a"}, {"value": "b"}]}
LABELS = {"query": "Hi", "items": ["a"], "label_token_ids": [1, 2]}
RANKING = {"query": "Hi", "documents": ["a", "b"]}
GENERATING = (CHAT, COMPLETIONS)
HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI, "max_tokens": 5},
    COMPLETIONS: {"prompt": "Hi", "max_tokens": 5},
    EMBEDDINGS: {"input": "Hi"},
    TOKENIZE: {"prompt": "Hi"},
    DETOKENIZE: {"tokens": [72, 105]},
    GENERATE: {"text": "Hi", "sampling_params": {"max_new_tokens": 5}},
    TOKEN_GENERATE: {"token_ids": [72, 105], "sampling_params": {"max_tokens": 5}},
    "/v1/chat/completions/render": {"messages": HI},
    "/v1/completions/render": {"prompt": "Hi"},
    "/v1/tokenize": {"prompt": "Hi"},
    "/v1/detokenize": {"tokens": [72, 105]},
    "/invocations": {"messages": HI, "max_tokens": 5},
    "/v1/messages": {"model": "sim", "messages": HI, "max_tokens": 5},
    "/v1/messages/count_tokens": {"model": "sim", "messages": HI},
    "/v1/responses": {"model": "sim", "input": "Hi", "max_output_tokens": 16},
    "/parse_function_call": {"text": "Hi", "tool_call_parser": "hermes", "tools": [TOOL]},
    "/separate_reasoning": {"text": "Hi", "reasoning_parser": "deepseek-r1"},
    "/v1/decisions": {"model": "sim", "input": "Hi", "questions": [DECIDING]},
    "/v1/systemone": {"state": "Hi", "questions": {"q": {"type": "choice", "criteria": {"a": None, "b": None}}}},
    "/v1/score": LABELS,
    "/score": LABELS,
    "/encode": {"text": "Hi"},
    "/rerank": RANKING,
    "/v1/rerank": RANKING,
    "/v2/rerank": RANKING,
    "/embed": {"inputs": "Hi"},
    "/similarity": {"inputs": {"source_sentence": "Hi", "sentences": ["a"]}},
}
HELLO = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}]}
HELLO_BODY = json.dumps(HELLO).encode()
VOCABULARY = 259  # of the byte tokenizer: 256 bytes and three control tokens
EMBED_LEN = 512
CONTEXT = 20_000


def one_connection(pool: Pool) -> httpx.Client:
    return checking_client(pool.url, limits=httpx.Limits(max_connections=1))


def post(client: httpx.Client, path: str, body: bytes | dict[str, Any]) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=content, headers={"content-type": "application/json"})


def cpu_seconds(pool: Pool) -> float:
    """What the API servers have used; their clock does not mind what else the machine does."""
    return sum(process["cpu_seconds"] for process in pool.pool()["processes"])


def local_port(response: httpx.Response) -> int:
    return response.extensions["network_stream"].get_extra_info("client_addr")[1]


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error document, whose shape and size are the same for every refusal."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert "x-request-id" in response.headers
    document = response.json()
    assert set(document) == {"error"}
    error = document["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert 0 < len(error["message"]) <= 1000
    assert error["param"] is None or len(error["param"]) <= 200
    return error


def refused(
    client: httpx.Client, path: str, body: bytes | dict[str, Any], param: str | None, says: str = "", status: int = 400
) -> dict[str, Any]:
    """Refused for this reason, and the same connection is served a good request afterwards."""
    response = post(client, path, body)
    error = error_of(response, status)
    assert error["param"] == param, error
    assert says in error["message"], error
    if status == 400:
        assert error["type"] == "invalid_request_error"
    again = post(client, path, GOOD[path])
    assert again.status_code == 200, again.text
    assert local_port(again) == local_port(response)
    return error


def good(path: str, **fields: Any) -> dict[str, Any]:
    return {**GOOD[path], **fields}


def assert_refused(reply: Reply, status: int, says: str = "") -> None:
    """The same of a reply by the byte: in OpenAI's shape, whoever it was that refused."""
    assert reply.status == status
    assert reply.headers["content-type"] == ["application/json"]
    assert set(reply.json()) == {"error"}
    assert set(reply.error) == {"message", "type", "param", "code"}
    assert says in reply.error["message"]


def assert_answers(connection: RawConnection) -> None:
    connection.send(request("POST", CHAT, HELLO_BODY))
    reply = connection.reply()
    assert reply.status == 200
    assert "Hello" in reply.json()["choices"][0]["message"]["content"]

"""Many requests at once share no tokenizer's state.

huggingface/tokenizers#537, huggingface/transformers#47085, weaviate/t2v-transformers-models#123.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.conftest import StartPool
from tests.pool import Pool
from tests.raw_http import RawConnection, request

pytestmark = pytest.mark.e2e

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


def all_at_once(pool: Pool, requests: list[tuple[str, dict[str, Any]]]) -> Iterator[httpx.Response]:
    with httpx.Client(base_url=pool.url, timeout=60) as client, ThreadPoolExecutor(32) as executor:
        yield from executor.map(lambda request: client.post(request[0], json=request[1]), requests)


def test_tokenizing_and_chatting_at_once_borrows_nobodys_tokenizer(echo_pool: Pool) -> None:
    requests: list[tuple[str, dict[str, Any]]] = []
    for number in range(64):
        text = f"{number} " * (1 + number * 20)
        requests.append(("/tokenize", {"prompt": text, "add_special_tokens": bool(number % 2)}))
        requests.append((CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 3}))
        requests.append((COMPLETIONS, {"prompt": text, "truncate_prompt_tokens": 5, "max_tokens": 5}))
    for (path, body), response in zip(requests, all_at_once(echo_pool, requests), strict=True):
        assert response.status_code == 200, response.text
        if path == "/tokenize":
            assert bytes(response.json()["tokens"]).decode() == body["prompt"]
        elif path == COMPLETIONS:
            assert response.json()["choices"][0]["text"] == body["prompt"][-5:]


def test_a_burst_of_batches_is_embedded_whole(embed_pool: Pool) -> None:
    requests = [(EMBEDDINGS, {"input": [f"{number} {item}" for item in range(20)]}) for number in range(100)]
    alone = {number: embed_pool.post(*requests[number]).json()["data"] for number in (0, 50, 99)}
    for number, response in enumerate(all_at_once(embed_pool, requests)):
        assert response.status_code == 200, response.text
        assert len(response.json()["data"]) == 20
        if number in alone:
            assert response.json()["data"] == alone[number]


def test_every_worker_encodes_after_the_fork_and_says_nothing_of_it(start_pool: StartPool) -> None:
    """A tokenizer that used its threads before the fork warns in every child, or hangs there."""
    with start_pool("--api-server-count", "4") as pool:
        with ExitStack() as stack:  # each accepts where the fewest are open: eight are two for each
            for connection in [stack.enter_context(RawConnection(pool.url)) for _ in range(8)]:
                connection.send(request("POST", "/tokenize", json.dumps({"prompt": ["a b c"] * 20}).encode()))
                assert connection.reply().status == 200
            assert all(process["requests"] > 0 for process in pool.pool()["processes"])
        assert "fork" not in pool.log.lower().replace("forked", "")
        assert "parallelism" not in pool.log.lower()

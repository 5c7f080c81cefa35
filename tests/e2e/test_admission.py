"""A pool that takes on only so much: what is over a limit is refused at once, and every count comes back to zero."""

import json
import os
import signal
import time
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.conftest import StartPool
from tests.e2e.refusals import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    GENERATE,
    GOOD,
    HI,
    TOKEN_GENERATE,
    assert_refused,
    error_of,
)
from tests.pool import Pool, wait_for
from tests.raw_http import RawConnection, Reply, request
from tests.streams import OpenRequest

pytestmark = pytest.mark.e2e

LONG: dict[str, Any] = {"prompt": "busy", "max_tokens": 2000, "ignore_eos": True, "stream": True}
YES_OR_NO = {"type": "noul", "instructions": "Is it?"}
GAUGES = ("admitted_requests", "queued_requests", "queued_tokens")
SECONDS = 10.0


def counts(pool: Pool) -> list[float]:
    return [pool.metric(name) for name in GAUGES]


def wait_for_counts(pool: Pool, *wanted: float) -> None:
    wait_for(lambda: counts(pool) == list(wanted), 5, f"{GAUGES} = {wanted}")


def all_at_once(pool: Pool, body: dict[str, Any], times: int) -> list[Reply]:
    """Each on a connection of its own; none is read before all were sent."""
    with ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(pool.url)) for _ in range(times)]
        for connection in connections:
            connection.send(request("POST", CHAT, json.dumps(body).encode()))
        return [connection.reply() for connection in connections]


def test_two_hundred_at_once_against_one_running_and_one_waiting(start_pool: StartPool) -> None:
    flags = ("--api-server-count", "4", "--max-inflight", "2")
    with start_pool(*flags, engine=["--max-running", "1", "--step-ms", "20", "--max-waiting", "1"]) as pool:
        body = {"messages": HI, "max_tokens": 5}
        began = time.monotonic()
        replies = all_at_once(pool, body, 200)
        assert time.monotonic() - began < SECONDS
        statuses = [reply.status for reply in replies]
        assert set(statuses) == {200, 503}
        assert statuses.count(200) >= 2
        for reply in replies:
            if reply.status == 503:
                assert_refused(reply, 503, "2 requests in progress")  # ours: the engine's queue never overflowed
                assert 1 <= int(reply.headers["retry-after"][0]) <= 60
        assert pool.metric("admission_rejections_total", reason="max_inflight") == statuses.count(503)
        for _ in range(20):
            assert pool.post(CHAT, body).status_code == 200
        wait_for_counts(pool, 0, 0, 0)
        assert pool.engine()["requests"] == statuses.count(200) + 20


def test_each_choice_and_each_prompt_counts(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", "--max-inflight", "3", engine=["--step-ms", "20"]) as pool:
        with OpenRequest(pool.url, COMPLETIONS, LONG | {"n": 2}) as busy:
            busy.read_some()
            wait_for_counts(pool, 2, 0, 0)
            error_of(pool.post(COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 1}), 503)
            assert pool.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1}).status_code == 200
        wait_for_counts(pool, 0, 0, 0)
        assert pool.post(COMPLETIONS, {"prompt": ["a", "b", "c"], "max_tokens": 1}).status_code == 200
        error = error_of(pool.post(COMPLETIONS, {"prompt": "a", "n": 4, "max_tokens": 1}), 400)
        assert error["param"] == "n"
        assert pool.metric("admission_rejections_total") == 1


def test_what_never_fits_names_the_clients_own_field(start_pool: StartPool) -> None:
    decisions = {"input": "Hi", "questions": [{"type": "predicate", "instructions": "Is it?"}] * 2}
    refused: list[tuple[str, dict[str, Any], str]] = [
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
        (COMPLETIONS, {"prompt": ["a"], "n": 2}, "n"),
        (CHAT, {"messages": HI, "n": 2}, "n"),
        (GENERATE, {"text": ["a", "b"]}, "text"),
        (GENERATE, {"input_ids": [[1], [2]]}, "input_ids"),
        (GENERATE, {"text": "a", "sampling_params": {"n": 2}}, "sampling_params.n"),
        (TOKEN_GENERATE, {"token_ids": [1], "sampling_params": {"n": 2}}, "sampling_params.n"),
        ("/v1/score", {"query": "q", "items": ["a", "b"], "label_token_ids": [1]}, "items"),
        ("/v1/decisions", decisions, "questions"),
        ("/v1/systemone", GOOD["/v1/systemone"] | {"questions": dict.fromkeys("ab", YES_OR_NO)}, "questions"),
    ]
    with start_pool("--api-server-count", "1", "--max-inflight", "1") as pool:
        for path, body, param in refused:
            error = error_of(pool.post(path, body), 400)
            assert (error["param"], "at a time" in error["message"]) == (param, True), path
    refused = [
        (EMBEDDINGS, {"input": ["a", "b"]}, "input"),
        ("/encode", {"text": ["a", "b"]}, "text"),
        ("/rerank", {"query": "q", "documents": ["a"]}, "documents"),
        ("/rerank", {"query": "q", "texts": ["a"]}, "texts"),
        ("/embed", {"inputs": ["a", "b"]}, "inputs"),
        ("/similarity", {"inputs": {"source_sentence": "q", "sentences": ["a"]}}, "inputs.sentences"),
        ("/score", {"text_1": "q", "text_2": ["a", "b"]}, "text_2"),
    ]
    with start_pool("--api-server-count", "1", "--max-inflight", "1", engine=["--task", "embed"]) as pool:
        for path, body, param in refused:
            assert error_of(pool.post(path, body), 400)["param"] == param, path


def test_the_queue_is_limited_by_requests_and_by_tokens(start_pool: StartPool) -> None:
    limits = ("--max-queued-requests", "2", "--max-queued-tokens", "100")
    with start_pool("--api-server-count", "2", *limits, engine=["--max-running", "1", "--step-ms", "20"]) as pool:
        with ExitStack() as stack:
            busy = stack.enter_context(OpenRequest(pool.url, COMPLETIONS, LONG))
            busy.read_some()
            stack.enter_context(OpenRequest(pool.url, COMPLETIONS, LONG | {"prompt": "x" * 90}))
            wait_for_counts(pool, 2, 1, 90)
            refused = error_of(pool.post(COMPLETIONS, {"prompt": "y" * 20, "max_tokens": 1}), 503)
            assert "90 prompt tokens waiting" in refused["message"]
            stack.enter_context(OpenRequest(pool.url, COMPLETIONS, LONG | {"prompt": "z"}))
            wait_for_counts(pool, 3, 2, 91)
            refused = error_of(pool.post(COMPLETIONS, {"prompt": "y", "max_tokens": 1}), 503)
            assert "2 requests waiting" in refused["message"]
        wait_for_counts(pool, 0, 0, 0)
        assert pool.post(COMPLETIONS, {"prompt": "y" * 200, "max_tokens": 1}).status_code == 200
        assert pool.metric("admission_rejections_total", reason="max_queued_tokens") == 1
        assert pool.metric("admission_rejections_total", reason="max_queued_requests") == 1


def test_embeddings_are_counted_until_they_are_there(start_pool: StartPool) -> None:
    engine = ["--task", "embed", "--step-ms", "1000", "--max-running", "2"]
    with start_pool("--api-server-count", "1", "--max-inflight", "3", engine=engine) as pool:
        with OpenRequest(pool.url, EMBEDDINGS, {"input": ["one", "two", "three"]}) as running:
            wait_for_counts(pool, 3, 3, 11)
            error_of(pool.post(EMBEDDINGS, {"input": "four"}), 503)
            assert len(running.json()["data"]) == 3
        wait_for_counts(pool, 0, 0, 0)
        assert pool.post(EMBEDDINGS, {"input": "four"}).status_code == 200


def test_an_error_of_the_engine_gives_its_place_back(start_pool: StartPool) -> None:
    engine = ["--fault", "error:120:2", "--fault", "refuse:121", "--step-ms", "1"]  # at an x, at a y
    with start_pool("--api-server-count", "1", "--max-inflight", "1", engine=engine) as pool:
        for prompt, status in (("x", 500), ("y", 503), ("z", 200), ("x", 500), ("z", 200)):
            assert pool.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 5}).status_code == status
        assert pool.post(COMPLETIONS, {"prompt": "x" * 100_000, "max_tokens": 5}).status_code == 400
        assert counts(pool) == [0, 0, 0]


def test_a_killed_workers_requests_are_counted_no_more(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", "--max-inflight", "4", engine=["--step-ms", "20"]) as pool:
        with ExitStack() as stack:
            for _ in range(4):
                stack.enter_context(OpenRequest(pool.url, COMPLETIONS, LONG)).read_some()
            wait_for_counts(pool, 4, 0, 0)
            error_of(pool.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1}), 503)
            for pid in pool.worker_pids():
                os.kill(pid, signal.SIGKILL)
            wait_for(lambda: served(pool), SECONDS, "a request that is served")
        wait_for_counts(pool, 0, 0, 0)
        pool.wait_idle()


def served(pool: Pool) -> bool:
    try:
        return httpx.post(pool.url + COMPLETIONS, json={"prompt": "a", "max_tokens": 1}, timeout=5).status_code == 200
    except httpx.TransportError:  # its worker had been killed
        return False

"""A client that leaves takes its work out of the engine, on every route that generates, whatever state it was in."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest

from apiserver.http.app import DIALECTS
from tests.e2e.refusals import GOOD, LABELS, RANKING
from tests.e2e.test_every_route import WITHOUT_ENGINE, WITHOUT_GOOD
from tests.pool import Pool, running_pool, wait_for
from tests.streams import OpenRequest, text_of

ABORT_SECONDS = 1.0
LONG = {"model": "sim", "max_tokens": 2000, "ignore_eos": True}
NATIVE = {"max_new_tokens": 2000, "ignore_eos": True}
RESPONSE = {"model": "sim", "input": "Hello", "max_output_tokens": 2000, "ignore_eos": True}
CHAT = LONG | {"messages": [{"role": "user", "content": "Hello"}]}

GENERATING: list[tuple[str, str, dict[str, Any], int]] = [
    ("one prompt", "/v1/completions", LONG | {"prompt": "one"}, 1),
    ("a list of prompts", "/v1/completions", LONG | {"prompt": ["one", "two", "three"]}, 3),
    ("two choices", "/v1/completions", LONG | {"prompt": "one", "n": 2}, 2),
    ("chat", "/v1/chat/completions", CHAT, 1),
    ("messages", "/v1/messages", CHAT, 1),
    ("chat with two choices", "/v1/chat/completions", CHAT | {"n": 2}, 2),
    ("responses", "/v1/responses", RESPONSE, 1),
    ("responses that nobody keeps", "/v1/responses", RESPONSE | {"store": False}, 1),
    ("native", "/generate", {"text": "one", "sampling_params": NATIVE}, 1),
    ("a native batch", "/generate", {"text": ["one", "two"], "sampling_params": NATIVE}, 2),
    ("ids", "/inference/v1/generate", {"token_ids": [72], "sampling_params": LONG | {"n": 2}}, 2),
    ("invocations", "/invocations", CHAT, 1),
]
SCORING = [
    pytest.param("/v1/decisions", GOOD["/v1/decisions"], 1, id="decisions"),
    pytest.param("/v1/systemone", GOOD["/v1/systemone"], 1, id="systemone"),
    pytest.param("/v1/score", LABELS | {"items": ["a", "b"]}, 2, id="scores of labels"),
]
EMBEDDING = [
    pytest.param("/v1/embeddings", {"input": "one"}, 1, id="one input"),
    pytest.param("/v1/embeddings", {"input": ["one", "two", "three"]}, 3, id="a list of inputs"),
    pytest.param("/encode", {"text": ["one", "two"]}, 2, id="encode"),
    pytest.param("/rerank", RANKING, 3, id="rerank"),
    pytest.param("/v2/rerank", RANKING, 3, id="Cohere's rerank"),
    pytest.param("/rerank", {"query": "Hi", "texts": ["a"]}, 2, id="TEI's rerank"),
    pytest.param("/score", {"text_1": "a", "text_2": ["b", "c"]}, 3, id="scores of pairs"),
    pytest.param("/embed", {"inputs": "one"}, 1, id="embed"),
    pytest.param("/similarity", GOOD["/similarity"], 2, id="similarity"),
]
CASES = [
    pytest.param(path, body | {"stream": stream}, requests, id=f"{name}, {'streaming' if stream else 'whole'}")
    for name, path, body, requests in GENERATING
    for stream in (False, True)
]


@pytest.fixture(scope="module")
def slow_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Four requests run at a time, twenty steps a second."""
    output = tmp_path_factory.mktemp("slow") / "pool.log"
    flags = ("--api-server-count", "2", "--max-model-len", "4096")
    with running_pool(output, *flags, engine=["--step-ms", "50", "--max-running", "4"]) as pool:
        yield pool
        assert "Traceback" not in pool.log


def wait_for_engine(pool: Pool, running: int, waiting: int, *, seconds: float) -> None:
    def is_so() -> bool:
        engine = pool.engine()
        return (engine["running"], engine["waiting"]) == (running, waiting)

    wait_for(is_so, seconds, f"{running} running and {waiting} waiting requests")


@pytest.mark.parametrize(("path", "body", "requests"), CASES)
def test_who_leaves_while_it_decodes_is_aborted(
    slow_pool: Pool, path: str, body: dict[str, Any], requests: int
) -> None:
    with OpenRequest(slow_pool.url, path, body) as request:
        if body["stream"]:
            request.read_some()
        wait_for_engine(slow_pool, requests, 0, seconds=5)
    wait_for_engine(slow_pool, 0, 0, seconds=ABORT_SECONDS)


@pytest.mark.parametrize(("path", "body", "requests"), CASES)
def test_who_leaves_while_it_queues_is_aborted_and_the_others_run_on(
    slow_pool: Pool, path: str, body: dict[str, Any], requests: int
) -> None:
    with OpenRequest(slow_pool.url, "/v1/completions", LONG | {"prompt": "busy", "n": 4, "stream": True}) as busy:
        busy.read_some()
        with OpenRequest(slow_pool.url, path, body) as request:
            if body["stream"]:
                assert request.status == 200  # accepted, so its headers are here; its tokens are far away
            wait_for_engine(slow_pool, 4, requests, seconds=5)
        wait_for_engine(slow_pool, 4, 0, seconds=ABORT_SECONDS)
        assert busy.read_some()
    wait_for_engine(slow_pool, 0, 0, seconds=ABORT_SECONDS)


def test_every_route_that_asks_the_engine_is_left_here(  # lmdeploy#4776: sibling routes are not alike by themselves
) -> None:
    left = {path for _, path, _, _ in GENERATING} | {param.values[0] for param in (*SCORING, *EMBEDDING)}
    same = {"/v1/rerank"}  # as another path that is here
    rendering = {path for path in DIALECTS if path.endswith("/render")}
    assert {*DIALECTS} - WITHOUT_ENGINE - WITHOUT_GOOD - rendering - same <= left


@pytest.mark.parametrize(("path", "body", "requests"), SCORING)
def test_who_leaves_while_its_scores_queue_is_aborted(
    slow_pool: Pool, path: str, body: dict[str, Any], requests: int
) -> None:
    with OpenRequest(slow_pool.url, "/v1/completions", LONG | {"prompt": "busy", "n": 4, "stream": True}) as busy:
        busy.read_some()
        with OpenRequest(slow_pool.url, path, body):
            wait_for_engine(slow_pool, 4, requests, seconds=5)
        wait_for_engine(slow_pool, 4, 0, seconds=ABORT_SECONDS)
    wait_for_engine(slow_pool, 0, 0, seconds=ABORT_SECONDS)


def test_a_reset_connection_is_as_good_as_a_closed_one(slow_pool: Pool) -> None:
    request = OpenRequest(slow_pool.url, "/v1/chat/completions", CHAT | {"stream": True})
    request.read_some()
    request.reset()
    wait_for_engine(slow_pool, 0, 0, seconds=ABORT_SECONDS)


def test_who_leaves_in_the_middle_of_its_body_leaves_nothing_behind(slow_pool: Pool) -> None:
    where = urlsplit(slow_pool.url)
    with socket.create_connection((where.hostname, where.port)) as connection:
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
        )
        connection.sendall(head.encode() + b'{"model":')
        wait_for(lambda: in_flight(slow_pool) == 1, 5, "a request in flight")
    wait_for(lambda: in_flight(slow_pool) == 0, ABORT_SECONDS, "no request in flight")


def test_who_leaves_after_a_large_body_is_aborted_too(slow_pool: Pool) -> None:
    """Reading may have paused in it, and must go on: a connection that is not read from does not end."""
    body = LONG | {"prompt": "one", "a field that nobody knows": "x" * 3_000_000}
    for _ in range(5):
        with OpenRequest(slow_pool.url, "/v1/completions", body):
            wait_for_engine(slow_pool, 1, 0, seconds=5)
        wait_for_engine(slow_pool, 0, 0, seconds=ABORT_SECONDS)


def test_what_the_same_client_asks_next_is_served_at_once(slow_pool: Pool) -> None:
    with OpenRequest(slow_pool.url, "/v1/completions", LONG | {"prompt": "busy", "n": 4, "stream": True}) as request:
        request.read_some()
    with OpenRequest(slow_pool.url, "/v1/completions", LONG | {"prompt": "next", "max_tokens": 1}) as request:
        assert request.json()["usage"]["completion_tokens"] == 1


def test_who_reads_nothing_and_leaves_is_forgotten(seeded_pool: Pool) -> None:
    """Its socket is full, so its stream stands in the middle of a write when it goes: the engine had long ended."""
    before = seeded_pool.engine()["requests"]
    body = LONG | {"prompt": "x" * 3900, "echo": True, "logprobs": 20, "max_tokens": 150, "n": 3, "stream": True}
    request = OpenRequest(seeded_pool.url, "/v1/completions", body, receive_buffer=4096)
    try:
        wait_for(lambda: seeded_pool.engine()["requests"] == before + 3, 5, "three choices")
        seeded_pool.wait_idle()
        assert in_flight(seeded_pool) == 1
    finally:
        request.reset()
    wait_for(lambda: in_flight(seeded_pool) == 0, 5, "no request in flight")


@pytest.mark.parametrize(("path", "body", "requests"), EMBEDDING)
def test_who_leaves_while_its_embedding_runs_or_queues_is_aborted(
    slow_embed_pool: Pool, path: str, body: dict[str, Any], requests: int
) -> None:
    def in_the_engine() -> int:
        engine = slow_embed_pool.engine()
        return engine["running"] + engine["waiting"]

    with OpenRequest(slow_embed_pool.url, path, body):
        wait_for(lambda: in_the_engine() == requests, 5, "the inputs in the engine")
    wait_for_engine(slow_embed_pool, 0, 0, seconds=ABORT_SECONDS)


@pytest.fixture(scope="module")
def slow_embed_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One request runs at a time, and takes ten seconds, from which the sim does not come back early."""
    output = tmp_path_factory.mktemp("slow-embed") / "pool.log"
    engine = ["--task", "embed", "--step-ms", "10000", "--max-running", "1"]
    with running_pool(output, "--api-server-count", "2", engine=engine) as pool:
        yield pool
        assert "Traceback" not in pool.log


def test_five_hundred_abandoned_streams_leave_nothing_behind(seeded_pool: Pool) -> None:
    before = seeded_pool.pool()
    left_before = seeded_pool.metric("http_responses_total", status="499")
    ended_before = seeded_pool.metric("request_success_total")
    body = CHAT | {"stream": True}
    for _ in range(10):
        with ExitStack() as stack:
            streams = [
                stack.enter_context(OpenRequest(seeded_pool.url, "/v1/chat/completions", body)) for _ in range(50)
            ]
            for stream in streams:
                assert stream.read_some()
    began = time.monotonic()
    seeded_pool.wait_idle(ABORT_SECONDS)
    assert time.monotonic() - began < ABORT_SECONDS

    short = CHAT | {"stream": True, "max_tokens": 3}
    for _ in range(10):
        with OpenRequest(seeded_pool.url, "/v1/chat/completions", short) as stream:
            assert len(text_of(stream.events())) == 3

    def counters_are_back() -> bool:
        return in_flight(seeded_pool) == 0 and sum(p["engine_requests"] for p in seeded_pool.pool()["processes"]) == 0

    wait_for(counters_are_back, 2, "counters at zero")
    assert seeded_pool.engine()["requests"] - before["engine"]["requests"] == 510
    assert seeded_pool.metric("http_responses_total", status="499") - left_before == 500
    assert seeded_pool.metric("request_success_total") - ended_before == 10
    assert seeded_pool.worker_pids() == [process["pid"] for process in before["processes"]]
    assert "Traceback" not in seeded_pool.log


def in_flight(pool: Pool) -> int:
    """Requests that API servers are answering, without the one that asks."""
    return sum(process["in_flight"] for process in pool.pool()["processes"]) - 1

"""Connections spread over the API servers, however they come: keep-alive pins a client to where it landed."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.pool import Pool, running_pool, wait_for
from tests.streams import KeptConnection, OpenRequest


@pytest.fixture(scope="module")
def quad_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Four API servers, and an engine slow enough for streams to stay."""
    output = tmp_path_factory.mktemp("quad") / "pool.log"
    with running_pool(output, "--api-server-count", "4", engine=["--step-ms", "50"]) as pool:
        yield pool


@contextmanager
def connections(pool: Pool, count: int) -> Iterator[list[KeptConnection]]:
    """So many keep-alive connections, opened as fast as can be. Afterwards the pool knows that they are gone."""
    before = sum(spread(pool))
    with ExitStack() as stack:
        yield [stack.enter_context(KeptConnection(pool.url)) for _ in range(count)]
    wait_for(lambda: sum(spread(pool)) == before, 5, "the connections' end")


def spread(pool: Pool) -> list[int]:
    """Open connections by slot, without the one that asks."""
    document = pool.pool()
    counts = [process["connections"] for process in document["processes"]]
    counts[document["answered_by"]] -= 1
    return counts


def spread_of(pool: Pool, count: int) -> list[int]:
    return wait_for(lambda: counts if sum(counts := spread(pool)) == count else None, 5, f"{count} connections")


def test_eight_connections_are_two_each_in_nine_of_ten_trials(quad_pool: Pool) -> None:
    trials = 10
    even = 0
    for _ in range(trials):
        with connections(quad_pool, 8):
            even += spread_of(quad_pool, 8) == [2, 2, 2, 2]
    assert even >= 0.9 * trials


def test_sixty_four_connections_are_spread_evenly_and_so_are_their_requests(quad_pool: Pool) -> None:
    with connections(quad_pool, 64) as kept:
        counts = spread_of(quad_pool, 64)
        before = [process["requests"] for process in quad_pool.pool()["processes"]]
        for connection in kept:
            assert connection.get("/v1/models").status == 200
        after = [process["requests"] for process in quad_pool.pool()["processes"]]
    assert max(counts) / 16 <= 1.15
    served = [now - then for now, then in zip(after, before, strict=True)]
    assert max(served) <= 20  # ours, and a few of the test's own questions


def test_new_connections_go_where_the_fewest_are_while_others_run(quad_pool: Pool) -> None:
    body: dict[str, Any] = {"model": "sim", "prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    with ExitStack() as stack:
        streams = [stack.enter_context(OpenRequest(quad_pool.url, "/v1/completions", body)) for _ in range(10)]
        for stream in streams:
            stream.read_some()
        with connections(quad_pool, 54):
            assert max(spread_of(quad_pool, 64)) / 16 <= 1.15
    quad_pool.wait_idle()


def test_a_replaced_api_server_gets_what_it_lacks(quad_pool: Pool) -> None:
    """The dead one's connections are not counted against the slot, so its successor is the emptiest."""
    with ExitStack() as stack:
        for _ in range(32):
            stack.enter_context(KeptConnection(quad_pool.url))
        assert max(spread_of(quad_pool, 32)) == 8
        document = quad_pool.pool()
        victim = next(process for process in document["processes"] if process["slot"] != document["answered_by"])
        os.kill(victim["pid"], signal.SIGKILL)
        wait_for(lambda: is_replaced(quad_pool, victim), 5, "a new API server in the slot")
        assert spread_of(quad_pool, 24)[victim["slot"]] == 0
        for _ in range(8):
            stack.enter_context(KeptConnection(quad_pool.url))
        assert spread_of(quad_pool, 32) == [8, 8, 8, 8]


def is_replaced(pool: Pool, victim: dict[str, Any]) -> bool:
    process = pool.pool()["processes"][victim["slot"]]
    return process["generation"] > victim["generation"] and process["state"] == "ready"

"""A client that does not read: it costs bounded memory, its work is aborted, and its connection is cut."""

import http.client
import time
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from tests.conftest import StartPool
from tests.e2e.refusals import COMPLETIONS
from tests.pool import Pool, wait_for
from tests.raw_http import RawConnection, request
from tests.streams import OpenRequest, text_of

pytestmark = pytest.mark.e2e

MEGABYTES = 2**20
SEND_SECONDS = 2
FLAGS = ("--api-server-count", "1", "--max-model-len", "1000000", "--send-timeout", str(SEND_SECONDS))
ENDLESS: dict[str, Any] = {"prompt": "one", "max_tokens": 900_000, "ignore_eos": True, "stream": True}


def in_flight(pool: Pool) -> int:
    """Without the request that asks."""
    return sum(process["in_flight"] for process in pool.pool()["processes"]) - 1


def test_streams_that_nobody_reads_are_cut_and_cost_little_until_then(start_pool: StartPool) -> None:
    clients = 20
    with start_pool(*FLAGS, engine=["--step-ms", "2", "--tokens-per-step", "10"]) as pool:
        [pid] = pool.worker_pids()
        worker = psutil.Process(pid)
        most = before = worker.memory_info().rss
        with ExitStack() as stack:
            for _ in range(clients):
                stack.enter_context(OpenRequest(pool.url, COMPLETIONS, ENDLESS, receive_buffer=4096))
            wait_for(lambda: pool.engine()["running"] == clients, 5, "running streams")

            def is_cut() -> bool:
                nonlocal most
                most = max(most, worker.memory_info().rss)
                return pool.metric("slow_clients_cut_total") == clients

            wait_for(is_cut, 25, "an end to all of them")
            pool.wait_idle(2)
            wait_for(lambda: in_flight(pool) == 0, 2, "no request in flight")
        # 20 streams of several MB each were made; what waits is token ids, and one piece that stands in its socket.
        assert pool.engine()["output_tokens"] > clients * 5_000
        assert most - before < clients * MEGABYTES
        assert pool.worker_pids() == [pid]
        assert "Traceback" not in pool.log


def test_a_whole_answer_that_nobody_reads_is_cut_although_its_request_has_ended(start_pool: StartPool) -> None:
    with start_pool(*FLAGS, "--keep-alive-timeout", "1", engine=["--mode", "echo"]) as pool:
        body = {"prompt": "x" * 900_000, "echo": True, "max_tokens": 1}
        with OpenRequest(pool.url, COMPLETIONS, body, receive_buffer=4096) as unread:
            wait_for(lambda: pool.metric("slow_clients_cut_total") == 1, 10, "a cut")
            with pytest.raises((OSError, http.client.IncompleteRead)):
                unread.read_all()
        assert in_flight(pool) == 0


def test_who_reads_slowly_but_reads_misses_nothing(start_pool: StartPool) -> None:
    with start_pool(*FLAGS, engine=["--step-ms", "1", "--tokens-per-step", "20"]) as pool:
        body = ENDLESS | {"max_tokens": 30_000}
        with OpenRequest(pool.url, COMPLETIONS, body) as quick:
            told = text_of(quick.events())
        with OpenRequest(pool.url, COMPLETIONS, body, receive_buffer=4096) as slow:
            began = time.monotonic()
            while time.monotonic() - began < 2 * SEND_SECONDS:
                slow.read_some()
                pool.get("/metrics")  # a few milliseconds, in which more comes than is read
            assert text_of(slow.events()) == told
        assert pool.metric("slow_clients_cut_total") == 0


def test_a_client_that_pipelines_and_never_reads_is_cut(start_pool: StartPool) -> None:
    with start_pool(*FLAGS) as pool:
        with RawConnection(pool.url, receive_buffer=4096) as connection:
            connection.send(request("GET", "/metrics") * 1000)
            wait_for(lambda: pool.metric("slow_clients_cut_total") == 1, 15, "a cut")
        wait_for(lambda: in_flight(pool) == 0, 2, "no request in flight")

"""More, fewer and other API servers, while two hundred requests a second come: none of them fails."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.conftest import StartPool
from tests.pool import Pool, wait_for
from tests.streams import KeptConnection, OpenRequest, text_of
from tests.traffic import Traffic

Record = Callable[[str, object], None]

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"


def chat(max_tokens: int, *, stream: bool = False) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello"}]
    return {"model": "sim", "ignore_eos": True, "stream": stream, "messages": messages, "max_tokens": max_tokens}


def scale(count: int, *options: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "apiserver", "scale", str(count), *options]
    environment = {**os.environ, "TMPDIR": str(directory)} if directory is not None else None
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


def port_of(pool: Pool) -> tuple[str, str]:
    return "--port", str(urlsplit(pool.url).port)


def wait_for_count(pool: Pool, count: int) -> None:
    """So many API servers that serve, and none that still drains."""
    wait_for(lambda: [process["state"] for process in pool.pool()["processes"]] == ["ready"] * count, 20, f"{count}")


def serving(pool: Pool) -> int:
    """Of a pool that has as many API servers as it should."""
    document = pool.pool()
    ready = sum(process["state"] == "ready" for process in document["processes"])
    return ready if ready == document["api_server_count"] else 0


def test_no_request_fails_while_the_pool_grows_and_shrinks(start_pool: StartPool, record_property: Record) -> None:
    with start_pool("--api-server-count", "2", engine=["--step-ms", "1"]) as pool:
        with Traffic(pool.url, chat(8)) as traffic:
            for count in (5, 1, 3):
                done = scale(count, *port_of(pool))
                assert (done.returncode, done.stderr) == (0, "")
                assert f"{count} API server" in done.stdout
                traffic.wait_for_more(100)
            pool.process.send_signal(signal.SIGTTIN)
            wait_for(lambda: serving(pool) == 4, 15, "one more")
            pool.process.send_signal(signal.SIGTTOU)
            wait_for(lambda: pool.pool()["api_server_count"] == 3, 5, "one fewer")
            traffic.wait_for_more(100)
            record_property("requests_per_second", traffic.rate)
        assert traffic.failures == []
        wait_for_count(pool, 3)
        assert pool.metric("http_responses_total", route=CHAT, status="200") == traffic.answers
        assert pool.pool()["api_server_deaths"] == 0


def test_a_hangup_under_load_fails_no_request(start_pool: StartPool, record_property: Record) -> None:
    with start_pool("--api-server-count", "3", engine=["--step-ms", "1"]) as pool:
        before = set(pool.worker_pids())
        with Traffic(pool.url, chat(8)) as traffic:
            for times in (1, 2):
                pool.process.send_signal(signal.SIGHUP)
                wait_for(lambda: pool.log.count("rolling restart is complete") == times, 20, "its end")  # noqa: B023  # called before the loop goes on
            traffic.wait_for_more(100)
            record_property("requests_per_second", traffic.rate)
        assert traffic.failures == []
        wait_for_count(pool, 3)
        assert not before & set(pool.worker_pids())


def test_api_servers_that_have_served_enough_are_replaced_and_no_request_fails(start_pool: StartPool) -> None:
    flags = ("--api-server-count", "2", "--max-requests-per-worker", "100")
    with start_pool(*flags, engine=["--step-ms", "1"]) as pool:
        before = set(pool.worker_pids())
        with Traffic(pool.url, chat(8)) as traffic:
            wait_for(lambda: pool.log.count("has served its requests") >= 4, 30, "four that have served enough")
            traffic.wait_for_more(50)
        assert traffic.failures == []
        assert not before & set(pool.worker_pids())
        assert pool.log.count("has served its requests") <= traffic.answers / 100


def test_a_pool_that_shrinks_lets_streams_finish(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "4", engine=["--step-ms", "20"]) as pool:
        streams = [OpenRequest(pool.url, CHAT, chat(150, stream=True)) for _ in range(8)]
        for stream in streams:
            stream.read_some()
        done = scale(1, *port_of(pool))
        assert done.returncode == 0
        assert "1 API server, 4 before; 3 still drain" in done.stdout
        assert [len(text_of(stream.events())) for stream in streams] == [150] * 8
        for stream in streams:
            stream.close()
        wait_for_count(pool, 1)


def test_the_smallest_pool_has_one_api_server(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1") as pool:
        pool.process.send_signal(signal.SIGTTOU)
        wait_for(lambda: "there can be 1 to 256 API servers, not 0" in pool.log, 5, "the refusal")
        for count in (0, 257):
            done = scale(count, *port_of(pool))
            assert (done.returncode, done.stdout) == (1, "")
            assert done.stderr == f"apiserver scale: there can be 1 to 256 API servers, not {count}\n"
        with KeptConnection(pool.url) as kept:
            assert kept.get("/health").status == 200


def test_scale_says_which_pools_there_are_where_it_cannot_choose(start_pool: StartPool, tmp_path: Path) -> None:
    done = scale(2, directory=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("apiserver scale: no running pool of yours found")
    with start_pool("--api-server-count", "1") as one, start_pool("--api-server-count", "1") as other:
        done = scale(2)
        assert done.returncode == 1
        assert "which of your pools? Say --port or --pid" in done.stderr
        assert one.url in done.stderr
        assert f"--pid {other.process.pid}" in done.stderr
        assert "no running pool of yours with pid 1;" in scale(2, "--pid", "1").stderr
        assert scale(2, "--pid", str(one.process.pid)).returncode == 0
        assert (one.pool()["api_server_count"], other.pool()["api_server_count"]) == (2, 1)

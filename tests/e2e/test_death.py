"""What dies, dies alone where it can, is told to everybody where it cannot, and leaves nothing behind."""

import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.conftest import StartPool
from tests.pool import Pool, wait_for
from tests.streams import KeptConnection, OpenRequest, error_of, text_of

Record = Callable[[str, object], None]

TOLD_SECONDS = 2.0  # how soon after the engine's death everybody knows
GONE_SECONDS = 5.0
REFUSED_SECONDS = 10.0  # it takes 0.3 s on an idle machine; what it must not take is the engine's time to load
LOADS_FOR_LONG = ("--", "--load-seconds", "60")


def chat(content: str, max_tokens: int, *, stream: bool = True) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": "sim", "ignore_eos": True, "stream": stream, "messages": messages, "max_tokens": max_tokens}


def wait_gone(processes: list[psutil.Process], seconds: float) -> None:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert alive == []


def serve_to_the_end(*arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """A pool that ends by itself, and the seconds that took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "apiserver", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done, time.monotonic() - began


# ---- an API server ----


def test_an_api_server_whose_heart_fails_says_so_and_is_replaced(start_pool: StartPool) -> None:
    """Out of descriptors, it cannot connect to the next engine core."""
    with start_pool("--api-server-count", "1") as pool:
        [pid] = pool.worker_pids()
        worker = psutil.Process(pid)
        engine = psutil.Process(pool.engine()["pid"])
        worker.rlimit(psutil.RLIMIT_NOFILE, (1, worker.rlimit(psutil.RLIMIT_NOFILE)[1]))
        engine.kill()
        wait_for(lambda: "the heart of this API server failed; it drains" in pool.log, 15, "a word about it")
        wait_for(lambda: "Too many open files" in pool.log, 5, "what was wrong")
        wait_for(lambda: not worker.is_running(), 15, "its end")
        wait_for(lambda: httpx.get(pool.url + "/health", timeout=10).status_code == 200, 15, "a whole pool")
        assert pool.worker_pids() != [pid]
        assert pool.post("/v1/chat/completions", chat("a", 2, stream=False)).status_code == 200
        assert pool.metric("api_server_deaths") == 1


def test_a_killed_api_server_is_replaced_and_only_its_own_streams_end(
    start_pool: StartPool, record_property: Record
) -> None:
    with start_pool("--api-server-count", "4", engine=["--step-ms", "8"]) as pool, ExitStack() as stack:
        bodies = [chat(f"stream {number}", 150) for number in range(16)]
        streams = [stack.enter_context(OpenRequest(pool.url, "/v1/chat/completions", body)) for body in bodies]
        for stream in streams:
            stream.read_some()
        document = pool.pool()
        victim = next(process for process in document["processes"] if process["slot"] != document["answered_by"])
        assert victim["in_flight"] > 0
        os.kill(victim["pid"], signal.SIGKILL)
        began = time.monotonic()

        wait_for(lambda: is_replaced(pool, victim), 5, "a new API server in the slot")
        replaced_after = time.monotonic() - began
        left = 16 - victim["in_flight"]
        wait_for(lambda: pool.engine()["running"] <= left, 1, "the dead one's requests out of the engine")
        aborted_after = time.monotonic() - began
        texts = [read_text(stream) for stream in streams]
        assert texts.count(None) == victim["in_flight"]

        again = [stack.enter_context(OpenRequest(pool.url, "/v1/chat/completions", body)) for body in bodies]
        undisturbed = [read_text(stream) for stream in again]
        assert None not in undisturbed
        assert all(text in (None, whole) for text, whole in zip(texts, undisturbed, strict=True))
        record_property("replaced_after_seconds", replaced_after)
        record_property("aborted_after_seconds", aborted_after)
        assert replaced_after < 1


def is_replaced(pool: Pool, victim: dict[str, Any]) -> bool:
    process = pool.pool()["processes"][victim["slot"]]
    return process["generation"] > victim["generation"] and process["state"] == "ready"


def read_text(stream: OpenRequest) -> str | None:
    """The stream's whole text; None if it was cut."""
    try:
        events = stream.events()
    except (OSError, http.client.HTTPException):
        return None
    assert events[-1] == "[DONE]"
    return text_of(events)


def test_thirty_two_killed_api_servers_leave_neither_zombies_nor_descriptors_nor_memory(
    start_pool: StartPool,
) -> None:
    with start_pool("--api-server-count", "8", engine=["--step-ms", "1"]) as pool:
        kill_all_api_servers(pool)  # what is allocated once is allocated now
        before = measure(pool)
        for _ in range(3):
            kill_all_api_servers(pool)
        wait_for(lambda: measure(pool)["descriptors"] == before["descriptors"], 5, "as many descriptors as before")
        after = measure(pool)
        assert after["living"] == before["living"] == 10  # no zombie, nobody missing
        assert after["supervisor_bytes"] - before["supervisor_bytes"] < 2**20
        assert after["pool_bytes"] - before["pool_bytes"] < 8 * 2**20
        assert psutil.Process(pool.process.pid).num_threads() == 1
        assert pool.pool()["api_server_deaths"] == 32
        answer = pool.post("/v1/chat/completions", chat("Hello", 3, stream=False))
        assert answer.json()["usage"]["completion_tokens"] == 3


def kill_all_api_servers(pool: Pool) -> None:
    """And wait until each slot serves again, with nothing left of the dead in the engine."""
    victims = pool.pool()["processes"]
    with ExitStack() as stack:
        bodies = [chat(f"stream {number}", 1000) for number in range(8)]
        for stream in [stack.enter_context(OpenRequest(pool.url, "/v1/chat/completions", body)) for body in bodies]:
            stream.read_some()
        for victim in victims:
            os.kill(victim["pid"], signal.SIGKILL)
        wait_for(lambda: all_replaced(pool, victims), 10, "new API servers in all slots")
    with ExitStack() as stack:  # what an API server opens once, with its first connection, is opened now
        for kept in [stack.enter_context(KeptConnection(pool.url)) for _ in victims]:
            assert kept.get("/live").status == 200
    pool.wait_idle()


def all_replaced(pool: Pool, victims: list[dict[str, Any]]) -> bool:
    try:
        processes = pool.pool()["processes"]
    except httpx.TransportError:  # the one that was to answer is among the dead
        return False
    return all(
        now["generation"] > then["generation"] and now["state"] == "ready"
        for now, then in zip(processes, victims, strict=True)
    )


def measure(pool: Pool) -> dict[str, Any]:
    processes = [psutil.Process(pool.process.pid), *pool.descendants()]
    sizes = [process.memory_full_info().uss for process in processes]
    return {
        "descriptors": sorted(process.num_fds() for process in processes),
        "living": sum(process.status() != psutil.STATUS_ZOMBIE for process in processes),
        "supervisor_bytes": sizes[0],
        "pool_bytes": sum(sizes),
    }


def test_api_servers_that_die_as_soon_as_they_live_stop_the_pool(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", engine=["--step-ms", "20"]) as pool:
        with OpenRequest(pool.url, "/v1/chat/completions", chat("Hello", 1000)) as stream:
            stream.read_some()
            shares = wait_for(lambda: shares_of(pool) if sum(shares_of(pool)) == 1 else None, 2, "the stream's share")
            slot = shares.index(0)
            for _ in range(5):
                process = wait_for(lambda: ready_process(pool, slot), 5, "an API server to kill")
                os.kill(process["pid"], signal.SIGKILL)
                wait_for(lambda: not psutil.pid_exists(process["pid"]), 5, "its death")  # noqa: B023  # called before the loop goes on
            assert "shutting down" in error_of(stream.events())["message"]
        assert pool.process.wait(GONE_SECONDS) == 5
        assert "a crash loop" in pool.log


def shares_of(pool: Pool) -> list[int]:
    """Requests of the engine by slot; the board learns of them with the next heartbeat."""
    return [process["engine_requests"] for process in pool.pool()["processes"]]


def ready_process(pool: Pool, slot: int) -> dict[str, Any] | None:
    process = pool.pool()["processes"][slot]
    return process if process["state"] == "ready" else None


def test_an_api_server_whose_loop_stands_still_is_replaced(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", "--api-server-timeout", "2") as pool:
        document = pool.pool()
        victim = next(process for process in document["processes"] if process["slot"] != document["answered_by"])
        os.kill(victim["pid"], signal.SIGSTOP)
        wait_for(lambda: is_replaced(pool, victim), 10, "a new API server in the slot")


# ---- the supervisor ----


@pytest.mark.parametrize("load_seconds", [0, 60], ids=["while it serves", "while the engine loads"])
def test_nothing_survives_the_supervisor_and_its_port_is_free(start_pool: StartPool, load_seconds: int) -> None:
    engine = ["--step-ms", "20", "--load-seconds", str(load_seconds)]
    with start_pool("--api-server-count", "3", engine=engine, ready=load_seconds == 0) as pool:
        processes = wait_for(lambda: all_children(pool, 4), 10, "all of the pool's processes")
        stream = OpenRequest(pool.url, "/v1/chat/completions", chat("Hello", 1000))
        assert stream.status == (200 if load_seconds == 0 else 503)
        pool.process.kill()
        pool.process.wait()
        wait_gone(processes, GONE_SECONDS)
        port = str(urlsplit(pool.url).port)

        # The client has not closed its connection yet: the port must be free all the same.
        with stream, start_pool("--api-server-count", "3", "--port", port, engine=["--step-ms", "1"]) as second:
            for number in range(100):
                answer = second.post("/v1/chat/completions", chat(f"prompt {number}", 2, stream=False))
                assert answer.json()["usage"]["completion_tokens"] == 2


def all_children(pool: Pool, count: int) -> list[psutil.Process] | None:
    children = pool.descendants()
    return children if len(children) == count else None


# ---- the engine ----


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=lambda number: number.name)
def test_where_engines_are_never_restarted_everybody_is_told_and_the_pool_ends(
    start_pool: StartPool, record_property: Record, number: signal.Signals
) -> None:
    flags = ("--api-server-count", "4", "--engine-restart", "never")
    with start_pool(*flags, engine=["--step-ms", "20"]) as pool, ExitStack() as stack:
        probes = [stack.enter_context(KeptConnection(pool.url)) for _ in range(4)]
        assert [health(probe) for probe in probes] == [200] * 4
        streams = [
            stack.enter_context(OpenRequest(pool.url, "/v1/chat/completions", chat(f"stream {number}", 1000)))
            for number in range(6)
        ]
        wholes = [
            stack.enter_context(
                OpenRequest(pool.url, "/v1/chat/completions", chat(f"whole {number}", 1000, stream=False))
            )
            for number in range(6)
        ]
        for stream in streams:
            stream.read_some()
        wait_for(lambda: pool.engine()["running"] == 12, 5, "twelve running requests")
        os.kill(pool.engine()["pid"], number)
        began = time.monotonic()

        with ThreadPoolExecutor(4) as threads:
            sick = list(threads.map(wait_for_503, probes))
        unhealthy_after = time.monotonic() - began
        errors = [error_of(stream.events()) for stream in streams]
        answers = [(whole.status, whole.json()["error"]["code"]) for whole in wholes]
        told_after = time.monotonic() - began
        record_property("unhealthy_after_seconds", unhealthy_after)
        record_property("told_after_seconds", told_after)
        assert sick == [503] * 4
        assert [error["code"] for error in errors] == [503] * 6
        assert answers == [(503, 503)] * 6
        assert told_after < TOLD_SECONDS
        assert pool.process.wait(GONE_SECONDS) == 4
        assert "the engine core died" in pool.log
        assert "Traceback" not in pool.log


def health(probe: KeptConnection) -> int:
    return probe.get("/health").status


def wait_for_503(probe: KeptConnection) -> int:
    return wait_for(lambda: status if (status := health(probe)) != 200 else 0, TOLD_SECONDS, "an unhealthy pool")


def test_an_engine_that_cannot_start_stops_the_pool_with_its_own_words(record_property: Record) -> None:
    done, seconds = serve_to_the_end("sim", "--engine", "sim", "--port", "0", *LOADS_FOR_LONG, "--no-such-option")
    assert done.returncode == 3
    assert "unrecognized arguments: --no-such-option" in done.stderr
    assert "Traceback" not in done.stderr
    record_property("seconds", seconds)
    assert seconds < REFUSED_SECONDS


# ---- a start that cannot be ----


def test_a_second_server_on_the_port_fails_at_once_with_one_line(seeded_pool: Pool, record_property: Record) -> None:
    port = str(urlsplit(seeded_pool.url).port)
    done, seconds = serve_to_the_end("sim", "--engine", "sim", "--port", port, *LOADS_FOR_LONG)
    assert done.returncode == 3
    advice = "choose another --port, or see who has it: ss -ltnp"
    assert done.stderr == f"apiserver: cannot listen on 127.0.0.1:{port}: Address already in use; {advice}\n"
    record_property("seconds", seconds)
    assert seconds < REFUSED_SECONDS


def test_a_model_path_that_does_not_exist_fails_at_once_with_one_line(tmp_path: Path, record_property: Record) -> None:
    path = tmp_path / "no-such-model.gguf"
    done, seconds = serve_to_the_end(str(path), "--port", "0")
    assert done.returncode == 3
    complaints = [line for line in done.stderr.splitlines() if "listening on" not in line]
    assert len(complaints) == 1
    assert str(path) in complaints[0]
    record_property("seconds", seconds)
    assert seconds < REFUSED_SECONDS

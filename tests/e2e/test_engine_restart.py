"""An engine that dies, however: everybody is told at once, the API servers stay, and a new one serves."""

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from tests.conftest import StartPool
from tests.pool import Pool, wait_for
from tests.streams import KeptConnection, OpenRequest, error_of, text_of

Record = Callable[[str, object], None]

pytestmark = pytest.mark.e2e

TOLD_SECONDS = 2.0
HEARTBEAT_SECONDS = 2.0
CHAT = "/v1/chat/completions"
STALLS, HANGS, CRASHES, IS_SLOW = 1, 2, 3, 4  # control characters that set off the faults
FAULTS = (f"stall:{STALLS}:2", f"hang:{HANGS}:2", f"crash:{CRASHES}:2", f"slow:{IS_SLOW}:3")


def chat(content: str, max_tokens: int, *, stream: bool = True) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": "sim", "ignore_eos": True, "stream": stream, "messages": messages, "max_tokens": max_tokens}


def faulty(*more: str) -> list[str]:
    return ["--step-ms", "10", *(word for fault in FAULTS for word in ("--fault", fault)), *more]


def status_of(probe: KeptConnection) -> int:
    return probe.get("/health").status


def wait_for_status(probe: KeptConnection, status: int, seconds: float) -> float:
    """When it came."""
    wait_for(lambda: status_of(probe) == status, seconds, f"{status} from /health")
    return time.monotonic()


def one_probe_each(stack: ExitStack, pool: Pool, count: int) -> list[KeptConnection]:
    """A connection to every API server: they are accepted by whoever has the fewest."""
    probes = [stack.enter_context(KeptConnection(pool.url)) for _ in range(count)]
    assert [status_of(probe) for probe in probes] == [200] * count
    wait_for(lambda: all(process["connections"] for process in pool.pool()["processes"]), 2, "one connection each")
    return probes


def assert_serves(pool: Pool) -> None:
    answer = pool.post(CHAT, chat("Hello", 3, stream=False))
    assert answer.json()["usage"]["completion_tokens"] == 3


def wait_until_it_serves(pool: Pool, epoch: int, seconds: float = 20.0) -> None:
    wait_for(
        lambda: pool.engine()["epoch"] == epoch and pool.get("/health").status_code == 200, seconds, "a new engine"
    )
    assert_serves(pool)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM], ids=lambda number: number.name)
def test_a_dead_engine_is_told_to_sixty_four_streams_and_replaced_under_living_api_servers(
    start_pool: StartPool, record_property: Record, number: signal.Signals
) -> None:
    flags = ("--api-server-count", "4", "--engine-heartbeat-timeout", f"{HEARTBEAT_SECONDS:g}")
    engine = ["--step-ms", "20", "--load-seconds", "1"]
    with start_pool(*flags, engine=engine) as pool, ExitStack() as stack:
        probes = one_probe_each(stack, pool, 4)
        streams = [stack.enter_context(OpenRequest(pool.url, CHAT, chat(f"stream {i}", 5000))) for i in range(64)]
        wholes = [
            stack.enter_context(OpenRequest(pool.url, CHAT, chat(f"whole {i}", 5000, stream=False))) for i in range(8)
        ]
        for stream in streams:
            stream.read_some()
        wait_for(lambda: pool.engine()["running"] == 72, 5, "seventy-two running requests")
        workers = sorted(pool.worker_pids())
        os.kill(pool.engine()["pid"], number)
        began = time.monotonic()

        with ThreadPoolExecutor(4) as threads:
            sick = list(threads.map(lambda probe: wait_for_status(probe, 503, TOLD_SECONDS), probes))
        meanwhile = wait_for(lambda: refusal(pool), 10, "a refused request") if number is not signal.SIGSTOP else None
        ends = [stream.events() for stream in streams]
        answers = [(whole.status, whole.response.getheader("retry-after"), whole.json()) for whole in wholes]
        told_after = time.monotonic() - began
        with ThreadPoolExecutor(4) as threads:
            well = list(threads.map(lambda probe: wait_for_status(probe, 200, 20), probes))
        assert_serves(pool)
        record_property("seconds_to_503", max(sick) - began)
        record_property("seconds_to_error", told_after)
        record_property("seconds_to_service", max(well) - began)

        for events in ends:
            assert error_of(events)["code"] == 503
            assert [event for event in events if "error" in event] == events[-2:-1]
        assert {status for status, _, _ in answers} == {503}
        assert all(int(after or 0) >= 1 for _, after, _ in answers)
        assert meanwhile is None or int(meanwhile) >= 1
        assert told_after < TOLD_SECONDS + (HEARTBEAT_SECONDS if number is signal.SIGSTOP else 0)
        assert sorted(pool.worker_pids()) == workers
        assert pool.engine()["epoch"] == 2
        assert pool.metric("engine_restarts") == 1
        assert "Traceback" not in pool.log
        for line in ("the engine core died", "starting the engine core again", "the engine serves again"):
            assert pool.log.count(line) == 1
        pool.wait_idle()


def refusal(pool: Pool) -> str | None:
    """The Retry-After of a request that comes while there is no engine."""
    answer = pool.post(CHAT, chat("Hello", 3, stream=False))
    assert answer.status_code in (200, 503)
    return answer.headers["retry-after"] if answer.status_code == 503 else None


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (STALLS, "has work, and has given nothing for 2 s"),
        (HANGS, "has a loop that has stood still for 2 s"),
        (CRASHES, "the engine core died (killed by SIGKILL)"),
    ],
    ids=["stall", "hang", "crash"],
)
def test_an_engine_that_fails_at_a_request_is_found_and_replaced(
    start_pool: StartPool, fault: int, complaint: str
) -> None:
    flags = ("--api-server-count", "2", "--engine-heartbeat-timeout", "2", "--engine-stall-timeout", "2")
    with start_pool(*flags, engine=faulty()) as pool, ExitStack() as stack:
        victims = [stack.enter_context(OpenRequest(pool.url, CHAT, chat(f"{i}", 5000))) for i in range(4)]
        for victim in victims:
            victim.read_some()
        culprit = stack.enter_context(OpenRequest(pool.url, CHAT, chat(chr(fault), 5000)))
        assert error_of(culprit.events())["code"] == 503
        for victim in victims:
            assert error_of(victim.events())["code"] == 503
        assert complaint in pool.log
        wait_until_it_serves(pool, epoch=2)


def test_a_long_step_is_no_death(start_pool: StartPool) -> None:
    flags = ("--api-server-count", "2", "--engine-heartbeat-timeout", "2", "--engine-stall-timeout", "10")
    with start_pool(*flags, engine=faulty()) as pool:
        with OpenRequest(pool.url, CHAT, chat(chr(IS_SLOW), 5)) as stream:
            began = time.monotonic()
            assert stream.status == 200
            while time.monotonic() - began < 2.5:
                assert pool.get("/health").status_code == 200
            assert len(text_of(stream.events())) == 5
        assert pool.engine()["epoch"] == 1


def test_an_engine_killed_again_and_again_comes_back_and_the_limit_ends_it(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", "--engine-restart-limit", "2", engine=["--step-ms", "20"]) as pool:
        for epoch in (1, 2):
            os.kill(pool.engine()["pid"], signal.SIGKILL)
            wait_until_it_serves(pool, epoch + 1)
        assert "restart 2 of at most 2, in 1 s" in pool.log
        with OpenRequest(pool.url, CHAT, chat("Hello", 5000)) as stream:
            stream.read_some()
            os.kill(pool.engine()["pid"], signal.SIGKILL)
            assert error_of(stream.events())["code"] == 503
        assert pool.process.wait(5) == 5
        assert "the engine core died 3 times within 3600 s: a crash loop" in pool.log


def test_an_engine_killed_while_it_loads_stops_a_start_and_counts_as_a_crash_later(start_pool: StartPool) -> None:
    flags = ("--api-server-count", "2", "--engine-restart-limit", "3")
    with start_pool(*flags, engine=["--load-seconds", "2"], ready=False) as pool:
        pid = wait_for(lambda: loading(pool, epoch=1), 10, "a loading engine")
        os.kill(pid, signal.SIGKILL)
        assert pool.process.wait(5) == 3
        assert "the engine core could not start (killed by SIGKILL)" in pool.log
    with start_pool(*flags, engine=["--load-seconds", "1"]) as pool:
        os.kill(pool.engine()["pid"], signal.SIGKILL)
        os.kill(wait_for(lambda: loading(pool, epoch=2), 10, "a loading engine"), signal.SIGKILL)
        wait_until_it_serves(pool, epoch=3)
        assert "died (killed by SIGKILL) before it was loaded" in pool.log


def loading(pool: Pool, epoch: int) -> int | None:
    """The pid of an engine core that is loading."""
    if pool.get("/live").status_code != 200:
        return None
    engine = pool.engine()
    return engine["pid"] or None if engine["state"] == "loading" and engine["epoch"] == epoch else None


def test_the_engine_an_api_server_and_a_rolling_restart_at_the_same_moment(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "3", engine=["--step-ms", "20", "--load-seconds", "0.5"]) as pool:
        before = set(pool.worker_pids())
        pool.process.send_signal(signal.SIGHUP)
        os.kill(pool.engine()["pid"], signal.SIGKILL)
        os.kill(min(before), signal.SIGKILL)
        wait_until_it_serves(pool, epoch=2)
        wait_for(lambda: "the rolling restart is complete" in pool.log, 20, "the end of the restart")
        wait_for(lambda: len(pool.worker_pids()) == 3 and not set(pool.worker_pids()) & before, 20, "three new ones")
        with ExitStack() as stack:
            one_probe_each(stack, pool, 3)
        assert_serves(pool)


def test_an_api_server_that_is_forked_without_an_engine_serves_with_the_next(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", engine=["--step-ms", "20", "--load-seconds", "1"]) as pool:
        os.kill(pool.engine()["pid"], signal.SIGKILL)
        wait_until_it_serves(pool, epoch=2)
        os.kill(pool.engine()["pid"], signal.SIGKILL)  # its successor has to wait a second
        wait_for(lambda: pool.engine()["state"] == "dead", 2, "a dead engine")
        victims = set(pool.worker_pids())
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(pid) for pid in victims if psutil.pid_exists(pid)], timeout=5)
        wait_for(lambda: "restart 2 of" in pool.log, 2, "the plan of a restart")
        pool.close_clients()
        with KeptConnection(pool.url) as kept:
            wait_for_status(kept, 503, 5)
            wait_for_status(kept, 200, 20)
        with ExitStack() as stack:
            one_probe_each(stack, pool, 2)


def test_an_api_server_that_drains_tells_its_streams_too_and_meets_the_next_engine(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1", engine=["--step-ms", "20"]) as pool, ExitStack() as stack:
        streams = [stack.enter_context(OpenRequest(pool.url, CHAT, chat(f"{i}", 5000))) for i in range(4)]
        for stream in streams:
            stream.read_some()
        kept = stack.enter_context(KeptConnection(pool.url))
        assert status_of(kept) == 200
        [old] = pool.worker_pids()
        engine = pool.engine()["pid"]
        pool.client.close()
        os.kill(old, signal.SIGTERM)
        wait_for(lambda: "was told to stop; replacing it" in pool.log, 5, "a replacement")
        os.kill(engine, signal.SIGKILL)
        began = time.monotonic()
        for stream in streams:
            assert error_of(stream.events())["code"] == 503
        assert time.monotonic() - began < TOLD_SECONDS
        wait_for(lambda: pool.pool()["state"] == "ready", 20, "a new engine")

"""What the pool says of itself is true, from whichever API server, in every state."""

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import StartPool
from tests.pool import Pool, wait_for
from tests.streams import KeptConnection, OpenRequest

CHAT: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
COMPLETION: dict[str, Any] = {"model": "sim", "prompt": "Hello", "max_tokens": 3}

Key = tuple[str, tuple[tuple[str, str], ...]]


def counters(text: str) -> dict[Key, float]:
    """Every sample that must never fall."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        if family.type in ("counter", "histogram")
        for sample in family.samples
    }


def scrape_each(pool: Pool) -> list[str]:
    """/metrics from every API server: keep-alive connections are spread over all of them."""
    with ExitStack() as stack:
        connections = [stack.enter_context(KeptConnection(pool.url)) for _ in pool.pool()["processes"]]
        assert [connection.get("/metrics").status for connection in connections] == [200] * len(connections)
        return [connection.body.decode() for connection in connections]


# ---- metrics ----


def test_what_was_sent_is_what_every_api_server_counts(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "4") as pool:
        for number in range(40):
            with OpenRequest(pool.url, "/v1/chat/completions", CHAT | {"stream": number % 2 == 0}) as request:
                request.read_all()
        for body in (COMPLETION | {"n": 2}, COMPLETION | {"max_tokens": -1}, COMPLETION | {"model": "other"}):
            httpx.post(pool.url + "/v1/completions", json=body)
        httpx.get(pool.url + "/no/such/route")
        wait_for(lambda: pool.metric("http_responses_total", route="/v1/completions") == 3, 2, "the last response")

        for text in scrape_each(pool):
            have = counters(text)

            def value(name: str, have: dict[Key, float] = have, **labels: str) -> float:
                return have[f"apiserver:{name}", tuple(sorted(labels.items()))]

            assert value("request_success_total", finished_reason="length") == 42
            assert value("http_requests_total", route="/v1/chat/completions") == 40
            assert value("http_responses_total", route="/v1/chat/completions", status="200") == 40
            assert value("http_responses_total", route="/v1/completions", status="200") == 1
            assert value("http_responses_total", route="/v1/completions", status="400") == 1
            assert value("http_responses_total", route="/v1/completions", status="404") == 1
            assert value("http_responses_total", route="none", status="404") == 1
            assert value("generation_tokens_total") == 42 * 3
            assert value("time_to_first_token_seconds_count") == 41
            assert value("e2e_request_latency_seconds_count") == 41

        before = counters(pool.get("/metrics").text)
        for process in pool.pool()["processes"]:
            os.kill(process["pid"], signal.SIGKILL)
        wait_for(lambda: is_up_again(pool, deaths=4), 10, "four new API servers")
        after = counters(httpx.get(pool.url + "/metrics").text)
        fallen = {key: (value, after.get(key)) for key, value in before.items() if after.get(key, -1) < value}
        assert fallen == {}
        gauges = httpx.get(pool.url + "/metrics").text
        assert [f'apiserver:api_server_up{{slot="{slot}"}} 1.0' in gauges for slot in range(5)] == [True] * 4 + [False]


def is_up_again(pool: Pool, deaths: int) -> bool:
    try:
        document = pool.pool()
    except httpx.TransportError:  # the one that was to answer is among the dead
        return False
    states = {process["state"] for process in document["processes"]}
    return document["api_server_deaths"] == deaths and states == {"ready"}


# ---- the pool ----


def test_the_pool_shows_every_process_as_it_is(seeded_pool: Pool) -> None:
    seeded_pool.wait_idle()
    with OpenRequest(seeded_pool.url, "/v1/chat/completions", CHAT | {"max_tokens": 3000, "stream": True}) as stream:
        stream.read_some()
        document = wait_for(lambda: running_pool_document(seeded_pool), 2, "a running request")
    workers, engine, supervisor = document["processes"], document["engine"], document["supervisor"]
    assert document["state"] == "ready"
    assert document["api_server_count"] == 4
    assert supervisor["pid"] == seeded_pool.process.pid
    children = {process.pid: process for process in seeded_pool.descendants()}
    assert {*children} == {engine["pid"], *(worker["pid"] for worker in workers)}
    assert "engine_bridge" in children[engine["pid"]].cmdline()
    assert [worker["slot"] for worker in workers] == [0, 1, 2, 3]
    assert {worker["state"] for worker in workers} == {"ready"}
    assert len({worker["generation"] for worker in workers}) == 4
    assert sum(worker["engine_requests"] for worker in workers) == 1
    assert sum(worker["in_flight"] for worker in workers) == 2  # the stream, and this question
    assert engine["state"] == "ready"
    assert engine["seconds_since_heartbeat"] < 1.5
    for process in (*workers, engine, supervisor):
        assert process["cpu_seconds"] >= 0
        assert process["rss_bytes"] > process["uss_bytes"] > 0
        assert psutil.pid_exists(process["pid"])


def running_pool_document(pool: Pool) -> dict[str, Any] | None:
    document = pool.pool()
    shares = sum(process["engine_requests"] for process in document["processes"])
    return document if (document["engine"]["running"], shares) == (1, 1) else None


# ---- health, ready, live ----


def status_of(pool: Pool, path: str) -> tuple[int, str]:
    answer = httpx.get(pool.url + path)
    return answer.status_code, answer.json()["status"]


def test_while_the_engine_loads_requests_are_told_to_come_back(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", engine=["--load-seconds", "4"], ready=False) as pool:
        wait_for(lambda: is_listening_and_loading(pool), 5, "API servers")
        assert status_of(pool, "/health") == (503, "loading")
        assert status_of(pool, "/ready") == (503, "loading")
        assert status_of(pool, "/live") == (200, "ok")
        for path, body in (
            ("/v1/chat/completions", CHAT),
            ("/v1/chat/completions", CHAT | {"stream": True}),
            ("/v1/completions", COMPLETION),
            ("/v1/embeddings", {"model": "sim", "input": "Hello"}),
        ):
            answer = httpx.post(pool.url + path, json=body)
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            error = answer.json()["error"]
            assert (error["code"], error["type"]) == (503, "ServiceUnavailableError")
            assert "loading" in error["message"]
        assert "apiserver:engine_up 0.0" in httpx.get(pool.url + "/metrics").text
        assert pool.pool()["engine"]["state"] == "loading"

        # Whoever asks first after "ok" is served, by whichever API server it reaches.
        wait_for(lambda: status_of(pool, "/health")[0] == 200, 15, "a healthy pool")
        answers = [httpx.post(pool.url + "/v1/completions", json=COMPLETION) for _ in range(8)]
        assert [answer.status_code for answer in answers] == [200] * 8
        assert status_of(pool, "/ready") == (200, "ok")
        assert "apiserver:engine_up 1.0" in httpx.get(pool.url + "/metrics").text


def is_listening_and_loading(pool: Pool) -> bool:
    return all(process["state"] == "ready" for process in pool.pool()["processes"])


def test_a_long_step_is_healthy_and_a_frozen_loop_is_not(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", engine=["--step-ms", "3000"]) as pool:
        with OpenRequest(pool.url, "/v1/chat/completions", CHAT):
            began = time.monotonic()
            wait_for(lambda: pool.engine()["running"] == 1, 2, "a running request")
            while time.monotonic() - began < 2:
                assert status_of(pool, "/health") == (200, "ok")
        engine = pool.engine()["pid"]
        os.kill(engine, signal.SIGSTOP)
        try:
            wait_for(lambda: status_of(pool, "/health")[0] == 503, 2, "an unhealthy pool")
            assert status_of(pool, "/ready")[0] == 503
            assert status_of(pool, "/live") == (200, "ok")
        finally:
            os.kill(engine, signal.SIGCONT)
        wait_for(lambda: status_of(pool, "/health") == (200, "ok"), 2, "a healthy pool")
        wait_for(lambda: (pool.engine()["running"], pool.engine()["waiting"]) == (0, 0), 2, "an idle engine")


# ---- a core of another release ----


def test_a_core_of_another_release_stops_the_start_and_the_log_says_why(
    start_pool: StartPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine core's interpreter alone finds another wire version; the API servers keep theirs."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'engine_bridge' in sys.orig_argv:\n"
        "    sys.path.insert(0, os.getcwd())\n"
        "    import engine_bridge.wire\n"
        "    engine_bridge.wire.WIRE_VERSION += 1\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with start_pool("--api-server-count", "2", ready=False) as pool:
        assert pool.process.wait(10) == 3
        assert (
            "the engine core and this API server do not go together: the engine core speaks wire version 2" in pool.log
        )
        assert "could not start; stopping the pool" in pool.log


def test_server_info_says_what_was_chosen_and_why(seeded_pool: Pool) -> None:
    info = seeded_pool.get("/server_info").json()
    assert info["tokenizer_backend"] == {"name": "hf", "reason": "one token a byte"}
    assert info["tokenizer_backend"] == seeded_pool.pool()["tokenizer_backend"]
    assert info["max_model_len"] == 4096
    assert info["api_server_count"] == 4

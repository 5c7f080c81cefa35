"""SIGHUP: what changed on disk is read again, and the workers are replaced one by one without a failed request."""

import signal
import threading
from pathlib import Path

import httpx
import pytest

from tests.conftest import StartPool
from tests.pool import Pool, wait_for

OLD = "{% for message in messages %}old {{ message['content'] }}{% endfor %}"
NEW = "{% for message in messages %}new {{ message['content'] }}{% endfor %}"


class _Traffic:
    """Clients that ask all the time, each on a connection that it keeps; `failures` is what went wrong."""

    def __init__(self, pool: Pool, clients: int) -> None:
        self._pool = pool
        self._stop = threading.Event()
        self.failures: list[str] = []
        self.answers: list[str] = []
        self._threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def __enter__(self) -> "_Traffic":
        for thread in self._threads:
            thread.start()
        wait_for(lambda: len(self.answers) > 20, what="traffic")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        body = {"messages": [{"role": "user", "content": "text"}], "max_tokens": 50}
        with httpx.Client(base_url=self._pool.url, timeout=20.0) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post("/v1/chat/completions", json=body)
                    answer.raise_for_status()
                    self.answers.append(answer.json()["choices"][0]["message"]["content"])
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))


def _pids(pool: Pool) -> set[int]:
    """Of every API server, also of one that still drains and may answer what its connections bring."""
    return {process["pid"] for process in pool.pool()["processes"]}


def test_a_changed_chat_template_reaches_every_worker_and_no_request_fails(
    start_pool: StartPool, tmp_path: Path
) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(OLD)
    with start_pool(
        "--api-server-count", "3", "--chat-template", str(template), engine=["--mode", "echo", "--step-ms", "1"]
    ) as pool:
        before = _pids(pool)
        with _Traffic(pool, clients=6) as traffic:
            assert traffic.answers[0] == "old text"
            template.write_text(NEW)
            pool.process.send_signal(signal.SIGHUP)
            wait_for(lambda: "rolling restart is complete" in pool.log, 20, "the end of the restart")
            wait_for(lambda: len(_pids(pool)) == 3 and not _pids(pool) & before, 20, "three new workers and no old one")
            seen = len(traffic.answers)
            wait_for(lambda: len(traffic.answers) > seen + 50, what="more traffic")
            assert set(traffic.answers[seen + 20 :]) == {"new text"}
        assert traffic.failures == []
        assert pool.metric("http_responses_total", route="/v1/chat/completions", status="200") == len(traffic.answers)
        assert pool.metric("http_responses_total", route="/v1/chat/completions", status="499") == 0


def test_a_stream_that_runs_through_the_restart_ends_as_it_would_have(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1", engine=["--mode", "echo", "--step-ms", "20"]) as pool:
        body = {"prompt": [65 + number % 26 for number in range(100)], "max_tokens": 100, "stream": True}
        with httpx.stream("POST", pool.url + "/v1/completions", json=body, timeout=30) as stream:
            lines = stream.iter_lines()
            next(lines)
            pool.process.send_signal(signal.SIGHUP)
            wait_for(lambda: "rolling restart is complete" in pool.log, 20, "the end of the restart")
            rest = list(lines)
        assert rest[-2] == "data: [DONE]"
        assert sum('"text":"' in line and '"finish_reason":null' in line for line in rest) == 99


@pytest.mark.parametrize(
    "broken",
    [b"{% for message in", b"{{ messages }}\xff", "{{ messages }}".encode("utf-16"), b"{{" + 5000 * b"(" + b"}}"],
    ids=["no template", "no UTF-8", "UTF-16", "nested too deeply"],
)
def test_a_broken_template_changes_nothing(start_pool: StartPool, tmp_path: Path, broken: bytes) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(OLD)
    with start_pool("--api-server-count", "2", "--chat-template", str(template), engine=["--mode", "echo"]) as pool:
        before = _pids(pool)
        template.write_bytes(broken)
        pool.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "everything stays as it is" in pool.log, what="the complaint")
        answer = pool.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "text"}]})
        assert answer.json()["choices"][0]["message"]["content"] == "old text"
        assert _pids(pool) == before


def test_a_hangup_for_all_that_has_our_name_kills_nobody(start_pool: StartPool) -> None:
    """As by `pkill -HUP -f "apiserver serve"`: all API servers have the supervisor's command line."""
    with start_pool("--api-server-count", "2", engine=["--step-ms", "5"]) as pool, _Traffic(pool, clients=4) as traffic:
        for process in (*pool.descendants(), pool.process):
            process.send_signal(signal.SIGHUP)
        wait_for(lambda: "rolling restart is complete" in pool.log, 20, "the end of the restart")
        assert traffic.failures == []
        assert pool.pool()["api_server_deaths"] == 0


def test_a_hangup_that_comes_while_the_pool_starts_is_heeded_when_it_has(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", ready=False) as pool:
        pool.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "rolling restart is complete" in pool.log, 20, "the end of the restart")
        assert pool.stop() == 0

"""Stopping: what runs finishes, or is told; what is new is refused; the exit code is 0."""

import json
import os
import pty
import signal
import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.conftest import StartPool
from tests.pool import Pool, wait_for
from tests.streams import KeptConnection, OpenRequest, error_of, text_of

STEPS = ("--step-ms", "20")


def chat(max_tokens: int, *, stream: bool = True) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello"}]
    return {"model": "sim", "ignore_eos": True, "stream": stream, "messages": messages, "max_tokens": max_tokens}


def open_streams(stack: ExitStack, pool: Pool, count: int, max_tokens: int) -> list[OpenRequest]:
    """Streams that run."""
    streams = [
        stack.enter_context(OpenRequest(pool.url, "/v1/chat/completions", chat(max_tokens))) for _ in range(count)
    ]
    for stream in streams:
        stream.read_some()
    return streams


def refuses(pool: Pool) -> bool:
    where = urlsplit(pool.url)
    try:
        socket.create_connection((where.hostname, where.port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # the door was shut while this one stood in it
        return False
    return False


def readiness(pool: Pool) -> str:
    return pool.get("/ready").json()["status"]


def assert_all_gone(processes: list[psutil.Process]) -> None:
    assert [process for process in processes if process.is_running()] == []


def test_ten_streams_finish_while_new_connections_are_refused(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "4", engine=STEPS) as pool, ExitStack() as stack:
        children = pool.descendants()
        directory = run_directory_of(children)
        assert directory.is_dir()
        streams = open_streams(stack, pool, 10, max_tokens=60)
        pool.process.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses(pool), 1, "a shut door")
        with ThreadPoolExecutor(10) as threads:
            texts = list(threads.map(lambda stream: text_of(stream.events()), streams))
        assert [len(text) for text in texts] == [60] * 10
        assert pool.process.wait(5) == 0
        assert_all_gone(children)
        assert not directory.exists()
        assert "Traceback" not in pool.log


def run_directory_of(children: list[psutil.Process]) -> Path:
    """Where the engine core was told to bind."""
    arguments = next(process.cmdline() for process in children if "engine_bridge" in process.cmdline())
    return Path(arguments[arguments.index("--address") + 1].removeprefix("ipc://")).parent


@pytest.mark.parametrize("limit", ["0.3", "0"])
def test_what_outlasts_the_limit_gets_an_error_and_the_exit_is_clean(start_pool: StartPool, limit: str) -> None:
    with start_pool("--api-server-count", "2", "--drain-timeout", limit, engine=STEPS) as pool, ExitStack() as stack:
        streams = open_streams(stack, pool, 10, max_tokens=3000)
        whole = stack.enter_context(OpenRequest(pool.url, "/v1/chat/completions", chat(3000, stream=False)))
        wait_for(lambda: pool.engine()["running"] == 11, 5, "eleven running requests")
        pool.process.send_signal(signal.SIGTERM)
        assert [error_of(stream.events())["code"] for stream in streams] == [503] * 10
        assert whole.status == 503
        assert "shutting down" in whole.json()["error"]["message"]
        assert pool.process.wait(5) == 0
        assert "Traceback" not in pool.log


def test_an_engine_that_dies_in_the_drain_is_told_to_everybody(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", engine=STEPS) as pool, ExitStack() as stack:
        engine = pool.engine()["pid"]
        streams = open_streams(stack, pool, 4, max_tokens=3000)
        pool.process.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses(pool), 1, "a shut door")
        os.kill(engine, signal.SIGKILL)
        began = time.monotonic()
        assert [error_of(stream.events())["code"] for stream in streams] == [503] * 4
        assert time.monotonic() - began < 2
        assert pool.process.wait(5) == 4


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGQUIT,)], ids=["twice", "SIGQUIT"])
def test_a_second_signal_stops_at_once_and_still_tells_everybody(
    start_pool: StartPool, numbers: tuple[signal.Signals, ...]
) -> None:
    with start_pool("--api-server-count", "2", engine=STEPS) as pool, ExitStack() as stack:
        children = pool.descendants()
        streams = open_streams(stack, pool, 4, max_tokens=3000)
        for number in numbers:
            pool.process.send_signal(number)
            wait_for(lambda: refuses(pool), 1, "a shut door")
        began = time.monotonic()
        assert [error_of(stream.events())["code"] for stream in streams] == [503] * 4
        assert pool.process.wait(5) == 0
        assert time.monotonic() - began < 2
        assert_all_gone(children)


def test_an_idle_connection_may_still_bring_its_next_request(start_pool: StartPool) -> None:
    """It may have been on its way: it is answered, and told to be the last."""
    with start_pool("--api-server-count", "1", engine=STEPS) as pool, ExitStack() as stack:
        kept = stack.enter_context(KeptConnection(pool.url))
        assert kept.get("/ready").status == 200
        [stream] = open_streams(stack, pool, 1, max_tokens=100)
        idle_since = time.monotonic()
        wait_for(lambda: time.monotonic() - idle_since > 0.7, 2, "an idle time beyond the grace")
        pool.process.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses(pool), 1, "a shut door")
        answer = kept.get("/ready")
        assert (answer.status, answer.getheader("connection")) == (503, "close")
        assert len(text_of(stream.events())) == 100
        assert pool.process.wait(5) == 0


@pytest.mark.parametrize("whose", ["the pool's", "one API server's"])
def test_a_connection_whose_stream_was_running_may_still_bring_its_next_request(
    start_pool: StartPool, whose: str
) -> None:
    """Its head left before the drain, without a word of closing: so the client may rely on the connection."""
    with start_pool("--api-server-count", "1", engine=STEPS) as pool, KeptConnection(pool.url) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(chat(40)), {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.getheader("connection") is None
        (worker,) = pool.worker_pids()
        os.kill(pool.process.pid if whose == "the pool's" else worker, signal.SIGTERM)
        wait_for(lambda: "draining:" in pool.log or "told to stop" in pool.log, what="the drain")
        assert response.read().endswith(b"data: [DONE]\n\n")
        assert connection.get("/version").getheader("connection") == "close"
        if whose == "the pool's":
            assert pool.process.wait(5) == 0


def test_during_the_delay_the_pool_is_not_ready_but_still_serves(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", "--drain-delay", "1", engine=STEPS) as pool:
        assert readiness(pool) == "ok"
        pool.process.send_signal(signal.SIGTERM)
        wait_for(lambda: readiness(pool) == "draining", 0.5, "a pool that says it drains")
        assert pool.get("/health").status_code == 200
        assert pool.get("/live").status_code == 200
        answer = pool.post("/v1/chat/completions", chat(2, stream=False))
        assert answer.json()["usage"]["completion_tokens"] == 2
        wait_for(lambda: refuses(pool), 2, "a shut door")
        assert pool.process.wait(5) == 0


def test_a_pool_that_still_loads_stops_at_once(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", engine=["--load-seconds", "60"], ready=False) as pool:
        wait_for(lambda: readiness(pool) == "loading", 5, "API servers")
        children = pool.descendants()
        began = time.monotonic()
        pool.process.send_signal(signal.SIGTERM)
        assert pool.process.wait(5) == 0
        assert time.monotonic() - began < 2
        assert_all_gone(children)


def test_a_pool_that_has_hardly_begun_stops_cleanly(start_pool: StartPool) -> None:
    """It may be loading its tokenizer, or forking: the exit code is the same."""
    with start_pool("--api-server-count", "2", ready=False) as pool:
        pool.process.send_signal(signal.SIGTERM)
        assert pool.process.wait(5) == 0
        assert "Traceback" not in pool.log


def test_one_api_server_told_to_stop_drains_alone_and_is_replaced(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "2", engine=STEPS) as pool, ExitStack() as stack:
        streams = open_streams(stack, pool, 4, max_tokens=50)
        before = pool.pool()["processes"]
        for process in before:
            os.kill(process["pid"], signal.SIGTERM)
        assert [len(text_of(stream.events())) for stream in streams] == [50] * 4
        wait_for(lambda: len({*pool.worker_pids()} - {p["pid"] for p in before}) == 2, 5, "two new API servers")


def test_an_order_that_reaches_the_api_servers_too_is_one_order(start_pool: StartPool) -> None:
    """As by `pkill -f "apiserver serve"`: all API servers have the supervisor's command line."""
    with start_pool("--api-server-count", "2", engine=STEPS) as pool, ExitStack() as stack:
        streams = open_streams(stack, pool, 4, max_tokens=50)
        for pid in (*pool.worker_pids(), pool.process.pid):
            os.kill(pid, signal.SIGTERM)
        assert [len(text_of(stream.events())) for stream in streams] == [50] * 4
        assert pool.process.wait(5) == 0


def test_a_second_signal_to_an_api_server_ends_its_requests(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1", engine=STEPS) as pool, ExitStack() as stack:
        (worker,) = pool.worker_pids()
        streams = open_streams(stack, pool, 2, max_tokens=3000)
        os.kill(worker, signal.SIGTERM)
        told_at = time.monotonic()
        wait_for(lambda: time.monotonic() - told_at > 1.2, 3, "time for a second thought")
        os.kill(worker, signal.SIGTERM)
        assert [error_of(stream.events())["code"] for stream in streams] == [503] * 2


def test_a_client_that_was_accepted_but_has_not_spoken_yet_is_answered(start_pool: StartPool, tmp_path: Path) -> None:
    """With TLS it takes round trips until a connection is one; meanwhile nobody must forget it."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ("-subj", "/CN=localhost", "-days", "1", "-keyout", str(key), "-out", str(certificate))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *subject]
    subprocess.run(command, check=True, capture_output=True)
    tls = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key))
    with start_pool("--api-server-count", "1", *tls) as pool:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(certificate)
        [worker] = [process for process in pool.descendants() if "engine_bridge" not in process.cmdline()]
        before = len(worker.net_connections())
        with socket.create_connection((urlsplit(pool.url).hostname, urlsplit(pool.url).port)) as plain:
            wait_for(lambda: len(worker.net_connections()) > before, 5, "an accepted connection")
            worker.send_signal(signal.SIGTERM)
            wait_for(lambda: "was told to stop; replacing it" in pool.log, 5, "its successor")
            with context.wrap_socket(plain, server_hostname="localhost") as client:
                client.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
                answer = client.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"connection: close" in answer


def test_control_c_in_a_terminal_drains(tmp_path: Path) -> None:
    """The terminal signals its whole foreground group; only the supervisor may be in it."""
    terminal, inside = pty.openpty()
    command = [sys.executable, "-m", "apiserver", "serve", "sim", "--engine", "sim", "--port", "0", "--", *STEPS]
    process = subprocess.Popen(
        command, stdin=inside, stdout=inside, stderr=inside, preexec_fn=lambda: os.login_tty(inside)
    )
    os.close(inside)
    try:
        screen = Screen(terminal)
        wait_for(lambda: "Try it:" in screen.text, 20, "a ready pool")
        url = screen.text.split("listening on ")[1].split()[0]
        with OpenRequest(url, "/v1/chat/completions", chat(50)) as stream:
            stream.read_some()
            os.write(terminal, b"\x03")
            assert len(text_of(stream.events())) == 50
        wait_for(lambda: screen.is_over, 5, "the end of the terminal")
        assert process.wait(5) == 0
        assert "Traceback" not in screen.text
    finally:
        os.close(terminal)
        if process.poll() is None:
            process.kill()
            process.wait()


class Screen:
    """What a terminal has shown; asking reads on."""

    def __init__(self, terminal: int) -> None:
        os.set_blocking(terminal, False)
        self._terminal = terminal
        self._shown = b""
        self._over = False

    @property
    def text(self) -> str:
        try:
            while data := os.read(self._terminal, 65536):
                self._shown += data
        except BlockingIOError:
            pass
        except OSError:  # nobody has the other end open any more
            self._over = True
        return self._shown.decode()

    @property
    def is_over(self) -> bool:
        return bool(self.text) and self._over

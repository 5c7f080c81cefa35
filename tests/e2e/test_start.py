"""What a pool is started with besides its flags: its streams, its temporary directory, its signals."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil
import pytest

from tests.pool import quiet_port, wait_for

COMMAND = (sys.executable, "-m", "apiserver", "serve", "sim", "--engine", "sim", "--api-server-count", "2")


def serves(url: str) -> bool:
    try:
        return httpx.get(url + "/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("closed", [(2,), (1, 2), (0, 1, 2)], ids=["stderr", "stdout and stderr", "all"])
def test_a_pool_without_standard_streams_serves_and_survives_its_api_servers(
    tmp_path: Path, closed: Sequence[int]
) -> None:
    """As some daemons are started. What a worker's end writes must not be its parent's, or a socket's."""
    port = quiet_port()
    url = f"http://127.0.0.1:{port}"
    shut = f"import os, sys; [os.close(number) for number in {closed}]; os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", shut, *COMMAND, "--port", str(port)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: serves(url), 40, "a ready pool")
        [directory] = tmp_path.glob("apiserver-*")
        before = {worker["pid"] for worker in httpx.get(url + "/pool").json()["processes"]}
        for pid in before:
            psutil.Process(pid).terminate()
        wait_for(lambda: not before & {child.pid for child in psutil.Process(process.pid).children()}, 10, "their ends")
        wait_for(lambda: serves(url), 10, "their successors")
        assert (directory / "control").is_socket()
        answer = httpx.post(url + "/v1/completions", json={"prompt": "text", "max_tokens": 3})
        assert answer.json()["usage"]["completion_tokens"] == 3
        process.terminate()
        assert process.wait(20) == 0
        assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("name", "complaint"), [("x" * 100, "is too long for the path of a socket: set TMPDIR to another")]
)
def test_a_temporary_directory_that_will_not_do_is_one_line(tmp_path: Path, name: str, complaint: str) -> None:
    (tmp_path / name).mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / name)}
    ended = subprocess.run([*COMMAND, "--port", "0"], env=environment, capture_output=True, text=True, timeout=40)
    assert ended.returncode == 3
    assert complaint in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_chat_template_that_is_no_utf8_is_one_line(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_bytes(b"{{ messages }}\xff")
    command = [*COMMAND, "--port", "0", "--chat-template", str(template)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=40)
    assert ended.returncode == 3
    assert re.fullmatch(r"apiserver: --chat-template .*: 'utf-8' codec can't decode .*", ended.stderr.splitlines()[-1])
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT], ids=lambda number: number.name)
def test_a_signal_to_stop_that_comes_before_the_supervisor_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    output = tmp_path / "log"
    path = tmp_path / "s"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [*COMMAND, "--uds", str(path)], env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=sink, stderr=sink
        )
    try:
        wait_for(path.exists, 20, "the socket")
        process.send_signal(number)
        assert process.wait(20) == 0
        assert list(tmp_path.iterdir()) == [output]
        assert "Traceback" not in output.read_text()
    finally:
        process.kill()
        process.wait()

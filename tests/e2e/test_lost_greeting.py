"""A connection between an API server and the core that breaks at the wrong moment loses the greeting, not the pool."""

import contextlib
import ctypes
import os
import socket
import time

import psutil
import pytest

from tests.conftest import StartPool
from tests.pool import wait_for

pytestmark = pytest.mark.e2e

_PIDFD_GETFD = 438  # the system call's number, on every architecture
_CUT_SECONDS = 2.0
_libc = ctypes.CDLL(None, use_errno=True)


def cut(core: psutil.Process) -> None:
    """Shut its connections to API servers, from outside: their sockets carry the path that it is bound to."""
    handle = os.pidfd_open(core.pid)
    try:
        for found in core.net_connections("unix"):
            if "/core." not in str(found.laddr):
                continue
            copy = _libc.syscall(_PIDFD_GETFD, handle, found.fd, 0)
            if copy < 0:  # it has been closed meanwhile
                continue
            with socket.socket(fileno=copy) as connection, contextlib.suppress(OSError):
                if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    connection.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(handle)


def test_an_api_server_whose_greeting_was_lost_greets_again(start_pool: StartPool) -> None:
    """While the core loads, it looks for dead API servers; one whose connection is down in that moment is forgotten."""
    with start_pool("--api-server-count", "2", engine=["--load-seconds", "3"], ready=False) as pool:
        assert pool.get("/health").status_code == 503
        core = wait_for(lambda: pool.engine()["pid"], 10, "a core that loads")
        began = time.monotonic()
        while time.monotonic() - began < _CUT_SECONDS:
            cut(psutil.Process(core))
        wait_for(lambda: pool.get("/health").status_code == 200, 20, "a healthy pool")
        answer = pool.post("/v1/completions", {"prompt": [65, 66], "max_tokens": 3, "ignore_eos": True})
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert pool.engine()["epoch"] == 1

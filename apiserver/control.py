"""A running pool takes orders: one datagram, one answer, over a Unix socket in its run directory.

The directory can be entered by the user who started the pool (and root) alone, so whoever reaches the socket may use
it. Datagrams have no connections to hold open: the supervisor, which must never wait, looks once in a while.
"""

import contextlib
import json
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

SOCKET_NAME = "control"
_MOST_BYTES = 65_536
_MOST_AT_ONCE = 16

Document = Mapping[str, Any]


class ControlSocket:
    """The pool's end. Leave the block to close it."""

    def __init__(self, directory: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(directory / SOCKET_NAME))

    def __enter__(self) -> "ControlSocket":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def answer(self, handle: Callable[[Document], Document]) -> None:
        """Answer what has come since the last call, which may be nothing. Never waits."""
        for _ in range(_MOST_AT_ONCE):
            try:
                data, sender = self._socket.recvfrom(_MOST_BYTES)
            except BlockingIOError:
                return
            order = _document(data)
            reply = handle(order) if order is not None else {"error": "not an order"}
            with contextlib.suppress(OSError, TypeError):  # it has gone, or gave no address to answer to
                self._socket.sendto(json.dumps(reply).encode(), sender)


def _document(data: bytes) -> Document | None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # the second: JSON that is nested too deeply
        return None
    return cast(Document, document) if isinstance(document, dict) else None


def ask(directory: Path, order: Document, seconds: float = 2.0) -> Document:
    """What the pool of this run directory answers. Raises OSError (TimeoutError too) if there is none, or no answer."""
    own = directory / f"{SOCKET_NAME}.{os.getpid()}"
    own.unlink(missing_ok=True)  # of another process that had our number
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        try:
            client.bind(str(own))
            client.settimeout(seconds)
            client.connect(str(directory / SOCKET_NAME))
            client.send(json.dumps(order).encode())
            answer = _document(client.recv(_MOST_BYTES))
        finally:
            own.unlink(missing_ok=True)
    if answer is None:
        raise OSError(f"{directory} answers something else")
    return answer

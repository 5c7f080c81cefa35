"""HTTP by the byte: for what no client library would send, and for seeing exactly what comes back."""

import json
import select
import socket
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

READ_SECONDS = 20.0


@dataclass(frozen=True)
class Reply:
    """One response. Header names are in lower case; of a repeated one, the values are in order."""

    status: int
    headers: dict[str, list[str]]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.json()["error"]


class RawConnection:
    """A connection to the pool; leaving the block closes it."""

    def __init__(self, url: str, *, receive_buffer: int | None = None) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), READ_SECONDS)
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._unread = b""

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def reply(self, *, to_head: bool = False) -> Reply:
        """The next response whose length its headers tell. `to_head` says that it has no body all the same."""
        status, headers = self._head()
        if to_head or status == 100:
            return Reply(status, headers, b"")
        if headers.get("transfer-encoding") == ["chunked"]:
            return Reply(status, headers, self._chunks())
        return Reply(status, headers, self._exactly(int(headers["content-length"][0])))

    def reply_to_its_end(self) -> Reply:
        """The next response whose body is all that comes until the server closes."""
        status, headers = self._head()
        parts = [self._unread]
        while data := self._socket.recv(65536):
            parts.append(data)
        self._unread = b""
        return Reply(status, headers, b"".join(parts))

    def has_answer(self, seconds: float) -> bool:
        """Whether something has come, or does so soon."""
        return bool(self._unread) or bool(select.select([self._socket], [], [], seconds)[0])

    def is_at_end(self) -> bool:
        """Whether the server closes now, without another byte and without a reset. Waits for either."""
        return not self._unread and self._socket.recv(1) == b""

    def _head(self) -> tuple[int, dict[str, list[str]]]:
        head = self._until(b"\r\n\r\n").decode("latin-1")
        status_line, *lines = head.rstrip("\r\n").split("\r\n")
        headers: dict[str, list[str]] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(name.lower(), []).append(value.strip())
        return int(status_line.split(" ")[1]), headers

    def _chunks(self) -> bytes:
        parts: list[bytes] = []
        while True:
            size = int(self._until(b"\r\n"), 16)
            parts.append(self._exactly(size))
            self._until(b"\r\n")
            if size == 0:
                return b"".join(parts)

    def _until(self, end: bytes) -> bytes:
        while end not in self._unread:
            self._receive()
        at = self._unread.index(end) + len(end)
        found, self._unread = self._unread[:at], self._unread[at:]
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._unread) < size:
            self._receive()
        found, self._unread = self._unread[:size], self._unread[size:]
        return found

    def _receive(self) -> None:
        data = self._socket.recv(65536)
        if not data:
            raise EOFError(f"the server closed in the middle of an answer, after {self._unread!r}")
        self._unread += data


def request(method: str, path: str, body: bytes | None = None, /, **headers: str) -> bytes:
    """A request as bytes. Underscores in header names are hyphens; a body is announced with its length."""
    lines = [f"{method} {path} HTTP/1.1", "host: test"]
    if body is not None:
        headers = {"content_type": "application/json", "content_length": str(len(body)), **headers}
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items() if value]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")

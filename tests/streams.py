"""Plain HTTP requests whose connection the test holds in its hand: to read slowly, to leave, to be cut."""

import http.client
import json
import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from tests import event_streams

READ_SECONDS = 20.0


class OpenRequest:
    """A request that has been sent. Leaving the block closes its connection, finished or not."""

    def __init__(
        self,
        url: str,
        path: str,
        body: Mapping[str, Any],
        *,
        receive_buffer: int | None = None,
        key: str | None = None,
    ) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=READ_SECONDS)
        self._connection.connect()
        if receive_buffer is not None:
            self._connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._response: http.client.HTTPResponse | None = None
        self._read: list[bytes] = []
        headers = {"content-type": "application/json"} | ({} if key is None else {"x-api-key": key})
        self._connection.request("POST", path, json.dumps(body), headers)

    def __enter__(self) -> "OpenRequest":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def response(self) -> http.client.HTTPResponse:
        """Waits for the headers."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    @property
    def status(self) -> int:
        return self.response.status

    def read_some(self) -> bytes:
        """The next bytes of the body; waits for the first of them."""
        some = self.response.read1()
        self._read.append(some)
        return some

    def read_all(self) -> bytes:
        """The whole body. Raises http.client.IncompleteRead or an OSError if the connection is cut before its end."""
        while self.read_some():
            pass
        if self.response.length:  # a body that is not chunked: read1 takes the end of the connection for its end
            raise http.client.IncompleteRead(b"".join(self._read))
        data = b"".join(self._read)
        if (self.response.getheader("content-type") or "").startswith(event_streams.EVENT_STREAM):
            event_streams.check(data)
        return data

    def json(self) -> Any:
        return json.loads(self.read_all())

    def events(self) -> list[Any]:
        """Every event to the end of the stream: documents, and the text "[DONE]"."""
        lines = self.read_all().decode().split("\n\n")
        datas = [line.removeprefix("data: ") for line in lines if line]
        return [data if data == "[DONE]" else json.loads(data) for data in datas]

    def close(self) -> None:
        """As a client that has gone: the connection ends (FIN)."""
        if self._response is not None:
            self._response.close()
        self._connection.close()

    def reset(self) -> None:
        """As a client that crashed: the connection is reset (RST)."""
        self._connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


class KeptConnection(http.client.HTTPConnection):
    """One keep-alive connection, which is not opened again behind the test's back. A block."""

    auto_open = 0

    def __init__(self, url: str) -> None:
        super().__init__(urlsplit(url).netloc, timeout=READ_SECONDS)
        self.body = b""
        self.connect()

    def __enter__(self) -> "KeptConnection":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def get(self, path: str) -> http.client.HTTPResponse:
        """The answer; its body is read, and in `body`."""
        self.request("GET", path)
        response = self.getresponse()
        self.body = response.read()
        return response


def text_of(events: list[Any]) -> str:
    """What a chat or completions stream said, its choices one after the other."""
    texts: dict[int, str] = {}
    for event in events:
        for choice in event["choices"] if isinstance(event, dict) and "choices" in event else ():
            piece = choice["delta"].get("content") if "delta" in choice else choice["text"]
            texts[choice["index"]] = texts.get(choice["index"], "") + (piece or "")
    return "".join(text for _, text in sorted(texts.items()))


def error_of(events: list[Any]) -> Any:
    """The error that a stream ended with; it must have been its last word but [DONE]."""
    assert events[-1] == "[DONE]"
    return events[-2]["error"]

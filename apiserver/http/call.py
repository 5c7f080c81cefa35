"""One HTTP request and its response, over raw ASGI: what every endpoint of ours is given.

Starlette routes; this answers. Its Request and Response objects, and above all StreamingResponse's task group, cost
more than the whole rest of a token's way (measured: docs/decisions.md).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import count
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from apiserver.api_keys import NOBODY
from apiserver.errors import TooLarge, UnsupportedEncoding, UnsupportedMediaType
from apiserver.http.inflate import CODINGS, inflated

_REQUEST_ID_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+=")
_MOST_REQUEST_ID = 128
_PART_BYTES = 256 * 1024
_ANTHROPIC_ROUTES = "/v1/messages"

RawHeaders = list[tuple[bytes, bytes]]
Handle = Callable[["Call"], Awaitable[None]]
"""What answers a call."""


class _Numbers:
    """Request ids of this process: a prefix of its own, and a count."""

    def __init__(self) -> None:
        self.begin()
        os.register_at_fork(after_in_child=self.begin)

    def begin(self) -> None:
        self._prefix = f"req-{os.urandom(6).hex()}-"
        self._count = count(1)

    def next(self) -> str:
        return f"{self._prefix}{next(self._count):x}"


_numbers = _Numbers()


class Call:
    """Read the body once, then either `respond`, or `start_stream`, `write` any number of times, `end_stream`."""

    __slots__ = (
        "_coding",
        "_headers_in",
        "_max_body_bytes",
        "_receive",
        "_received",
        "_release",
        "_send",
        "_takes_compressed",
        "caller",
        "is_anthropic",
        "path_params",
        "request_id",
        "scope",
        "status",
    )

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, max_body_bytes: int, *, takes_compressed: bool = False
    ) -> None:
        self.scope = scope
        self._receive = receive
        self._send = send
        self._max_body_bytes = max_body_bytes
        self._takes_compressed = takes_compressed
        self._coding: bytes | None = None  # of the body, if it is compressed and may be
        self._received = False  # whether the body was asked for
        self._headers_in: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # the first of a name stays
        self.path_params: dict[str, Any] = scope.get("path_params", {})
        self.request_id = _request_id(self.header(b"x-request-id"))
        # Whether the client speaks Anthropic's API: it says so, or asks for one of its routes.
        self.is_anthropic = is_anthropics(scope["path"]) or b"anthropic-version" in self._headers_in
        self.status = 0  # of the response, once it has begun
        self.caller = NOBODY  # until its key was looked at
        self._release: Callable[[], None] | None = None

    @property
    def owner(self) -> str:
        """Whose requests of the engine it makes."""
        return self.caller.owner

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by its lower-case name."""
        return self._headers_in.get(name)

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters; of a repeated one, the last."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1")))

    def count_until(self, release: Callable[[], None]) -> None:
        """It counts against its key until this is called: by `released`, unless somebody takes that over."""
        self._release = release

    def take_release(self) -> Callable[[], None] | None:
        """For work that goes on when the call is answered: it counts until whoever took this calls it. None: it does
        not count."""
        release, self._release = self._release, None
        return release

    def released(self) -> None:
        release = self.take_release()
        if release is not None:
            release()

    async def body(self) -> bytes:
        """The whole body, inflated if `require_json` found it compressed. Raises TooLarge as soon as that is known:
        from its length before any of it is read."""
        length = self.header(b"content-length")
        if length is not None and int(length) > self._max_body_bytes:
            raise self._too_large()
        self._received = True
        body = self._checked(await self._read())
        return body if self._coding is None else await inflated(body, self._coding, self._max_body_bytes)

    async def _read(self) -> bytes:
        message = await self._receive()
        if not message.get("more_body", False):
            return message.get("body", b"")
        parts: list[bytes] = [message["body"]]
        size = len(parts[0])
        while message.get("more_body", False):
            message = await self._receive()
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_body_bytes:
                raise self._too_large()
        return b"".join(parts)

    def _checked(self, body: bytes) -> bytes:
        if len(body) > self._max_body_bytes:
            raise self._too_large()
        return body

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The body is larger than {self._max_body_bytes} bytes, the limit of this server.")

    def require_json(self) -> None:
        """Raises UnsupportedMediaType for another content type, UnsupportedEncoding for a coding that is not taken."""
        content_type = self.header(b"content-type")
        if content_type is None or content_type.split(b";", 1)[0].strip().lower() != b"application/json":
            raise UnsupportedMediaType("The content type must be application/json.")
        coding = (self.header(b"content-encoding") or b"").strip().lower()
        if coding not in (b"", b"identity"):
            if not self._takes_compressed:
                raise UnsupportedEncoding("Compressed bodies are not accepted.")
            if coding not in CODINGS:
                raise UnsupportedEncoding("Bodies may be compressed by gzip or deflate.", accepted="gzip, deflate")
            self._coding = coding
        if (self.header(b"transfer-encoding") or b"chunked").strip().lower() != b"chunked":
            raise UnsupportedEncoding("Compressed bodies are not accepted.")

    async def respond(
        self,
        status: int,
        body: bytes | list[bytes],
        content_type: bytes = b"application/json",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        """The whole response. Of a large one, each part leaves before the next is copied, and others get their turn."""
        parts = [body] if isinstance(body, bytes) else body
        left = sum(map(len, parts))
        raw = self._headers(content_type, headers)
        raw.append((b"content-length", str(left).encode()))
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
        for part in _cut(parts) if left > _PART_BYTES else (b"".join(parts),):
            left -= len(part)
            await self._send({"type": "http.response.body", "body": part, "more_body": left > 0})
            if left:
                await asyncio.sleep(0)

    async def start_stream(
        self,
        headers: Iterable[tuple[str, str]] = (),
        content_type: bytes = b"text/event-stream; charset=utf-8",
    ) -> None:
        raw = self._headers(content_type, headers)
        raw.append((b"cache-control", b"no-cache"))
        raw.append((b"x-accel-buffering", b"no"))  # nginx would hold the stream back
        self.status = 200
        await self._send({"type": "http.response.start", "status": 200, "headers": raw})
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})  # the head leaves now

    async def write(self, data: bytes) -> None:
        """Waits while the client does not read: what comes meanwhile is merged by whoever asks for it then."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self, data: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": data})

    def _headers(self, content_type: bytes, headers: Iterable[tuple[str, str]]) -> RawHeaders:
        raw: RawHeaders = [(b"content-type", content_type), (b"x-request-id", self.request_id.encode())]
        if self.is_anthropic:
            raw.append((b"request-id", self.request_id.encode()))
        raw += [(name.encode(), value.encode()) for name, value in headers]
        if not self._received and self.header(b"expect") is not None and (b"connection", b"close") not in raw:
            # Nobody said "100 Continue", so the client may or may not send its body: what follows could be either.
            raw.append((b"connection", b"close"))
        return raw


def is_anthropics(path: str) -> bool:
    """Whether that is one of Anthropic's routes, or was meant for one."""
    return _ANTHROPIC_ROUTES in path


def _cut(parts: list[bytes]) -> Iterator[bytes]:
    return (part[at : at + _PART_BYTES] for part in parts for at in range(0, len(part), _PART_BYTES))


def _request_id(sent: bytes | None) -> str:
    """The client's own if it is short and plain (vllm#10968: 1 MB of it, in every chunk), else one of ours."""
    if sent is not None and 0 < len(sent) <= _MOST_REQUEST_ID and _REQUEST_ID_CHARACTERS.issuperset(sent):
        return sent.decode()
    return _numbers.next()

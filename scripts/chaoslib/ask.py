"""One request, with all that is needed to say what its answer should have been."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chaoslib.connection import Reply

NOT_NOW = frozenset((429, 503, 504))
"""What any request may be answered while things are broken."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a reply says, whatever its dialect: the text of each choice, and how far it got."""

    texts: Mapping[int, str] = field(default_factory=dict[int, str])
    calls: tuple[tuple[str, Any], ...] = ()
    finished: bool = False
    error: str | None = None
    """The error that a stream, or a stored response, ended with."""
    pending: bool = False
    """Ask again: it is still being made."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The texts of each choice and the tool calls, or a document that must be the same."""

    texts: Mapping[int, str] = field(default_factory=dict[int, str])
    calls: tuple[tuple[str, Any], ...] = ()


Reader = Callable[[bytes, bool], Said]
"""A body, and whether it is all of it, to what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """`trouble` is the fault that its prompt sets off in the engine, so that its failure is no surprise."""

    dialect: str
    path: str
    read: Reader
    expected: Expected | None
    body: Mapping[str, Any] | None = None
    method: str = "POST"
    stream: bool = False
    trouble: str | None = None
    timeout_ms: int | None = None
    leave_after: int | None = None
    pause_seconds: float = 0.0
    pipelined: bool = False
    generates: bool = True
    then: "Callable[[Reply, Said], Ask | None] | None" = None
    allowed: frozenset[int] = NOT_NOW

    def request(self, host: str, key: str | None) -> bytes:
        """The bytes of it."""
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: {host}"]
        if key is not None:
            lines.append(f"Authorization: Bearer {key}")
        if self.timeout_ms is not None:
            lines.append(f"x-request-timeout-ms: {self.timeout_ms}")
        body = b"" if self.body is None else json.dumps(self.body, ensure_ascii=False).encode()
        if self.body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "", ""]).encode() + body

    @property
    def name(self) -> str:
        return f"{self.dialect}{', stream' if self.stream else ''}"

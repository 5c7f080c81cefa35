"""What is sent, and what may come back."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Input:
    """The bytes of one connection."""

    kind: str
    path: str
    """The route that it means; empty where it means none."""
    pieces: tuple[bytes, ...]
    """Sent one after another, with a turn of the loop between them."""
    must_answer: bool = True
    """A server that says nothing has hung; else it may be waiting for the rest."""
    may_be: frozenset[int] = frozenset()
    """The statuses from 500 on that are right for it."""

    @property
    def data(self) -> bytes:
        return b"".join(self.pieces)


def request(method: str, path: str, body: bytes | None = None, headers: tuple[bytes, ...] = ()) -> bytes:
    """A proper request, after which the server closes."""
    lines = [f"{method} {path} HTTP/1.1".encode("latin-1"), b"host: fuzz", b"connection: close", *headers]
    if body is not None:
        lines += [b"content-type: application/json", b"content-length: %d" % len(body)]
    return b"\r\n".join([*lines, b"", body or b""])

"""What a dialect is: a class made once per request, which is that request's state in the dialect."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from apiserver.card import Card
from apiserver.errors import ApiError
from apiserver.events import Event, Result
from apiserver.requests import Job


class Spliced(NamedTuple):
    """A JSON document as ready bytes in parts, so that long ones are copied once. Parts that grow with the stream are
    as they should be until the exchange gets its next event: write them out before that."""

    parts: Sequence[bytes | bytearray]


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """One server-sent event: a JSON document (anything msgspec encodes; Raw or Spliced for ready bytes), maybe with a
    name."""

    document: Any
    event: str | None = None


class OpenExchange(Protocol):
    """One request that has been read: the job it means, and how its answer is written."""

    stream: bool

    @property
    def job(self) -> Job:
        """What it means."""
        ...

    def body(self, result: Result) -> "Body":
        """The whole answer."""
        ...

    def chunks(self, event: Event) -> Iterator[Chunk]:
        """One event, as zero or more chunks."""
        ...

    def last_chunks(self, result: Result) -> Iterator[Chunk]:
        """What follows the last event: usage, [DONE]."""
        ...

    def error_chunks(self, error: ApiError) -> Iterator[Chunk]:
        """The end of a stream that failed after its headers had left."""
        ...


class Exchange(OpenExchange, Protocol):
    """One request in one dialect, from its bytes on."""

    def __init__(self, raw: bytes, card: Card) -> None:
        """Decode and validate. Raises InvalidRequest or NotFound."""
        ...

    @staticmethod
    def error(error: ApiError) -> Any:
        """This dialect's error document."""
        ...


class Dialect(Protocol):
    """What serves a route: an exchange's class, or whatever chooses one by the body (`Forms`)."""

    @property
    def fields(self) -> tuple[type[msgspec.Struct], ...]:
        """What it reads of a body; several where several kinds of body are taken."""
        ...

    @property
    def streams(self) -> bool:
        """Whether an answer may be a stream."""
        ...

    def __call__(self, raw: bytes, card: Card, /) -> Exchange: ...

    def error(self, error: ApiError, /) -> Any:
        """The error document, also for bodies that never became an exchange."""
        ...


class Pieces(NamedTuple):
    """A large JSON document as bytes that are made one after another: nobody waits for all of it at once."""

    pieces: Iterator[bytes]


class Body(NamedTuple):
    """A whole answer: a document to be encoded as JSON, Pieces of one, or bytes with a content type of their own."""

    document: Any
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Unary:
    """For dialects that never stream."""

    path: ClassVar[str]
    fields: ClassVar[tuple[type[msgspec.Struct], ...]]
    streams: ClassVar[bool] = False
    stream = False

    def chunks(self, event: Event) -> Iterator[Chunk]:
        return iter(())

    def last_chunks(self, result: Result) -> Iterator[Chunk]:
        return iter(())

    def error_chunks(self, error: ApiError) -> Iterator[Chunk]:
        return iter(())

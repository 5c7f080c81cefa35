"""Long lists in an answer, written a few items at a time: the logprobs of thousands of tokens, with twenty others for
each, would hold the loop for a second."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, cast

import msgspec

from apiserver.protocol.exchange import Pieces

_AT_ONCE = 16  # about half a millisecond of logprobs
_encode = msgspec.json.Encoder().encode


class Listed:
    """A list of a document whose items are made when it is written, once."""

    __slots__ = ("items",)

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items


def written(document: dict[str, Any] | list[dict[str, Any]]) -> Pieces:
    """A document that has Listed lists in its objects, and in the objects of their lists."""
    return Pieces(_pieces(document))


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, Listed):
        yield from _items(iter(value.items))
    elif isinstance(value, dict):
        mark = b"{"
        for key, inner in cast(dict[str, Any], value).items():
            yield mark + _encode(key) + b":"
            yield from _pieces(inner)
            mark = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        mark = b"["
        for inner in cast(list[Any], value):
            yield mark
            yield from _pieces(inner)
            mark = b","
        yield b"]"
    else:
        yield _encode(value)


def _items(items: Iterator[Any]) -> Iterator[bytes]:
    mark = b"["
    while some := list(islice(items, _AT_ONCE)):
        yield mark + _encode(some)[1:-1]
        mark = b","
    yield b"]" if mark == b"," else b"[]"

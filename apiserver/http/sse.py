"""A chunk to the bytes of one server-sent event."""

import msgspec

from apiserver.protocol.exchange import Chunk

_encode = msgspec.json.Encoder().encode


def encode(chunk: Chunk) -> bytes:
    """One `data:` line, after an `event:` line where the dialect names its events; a blank line ends it."""
    data = _encode(chunk.document)
    if chunk.event is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + chunk.event.encode() + b"\ndata: " + data + b"\n\n"

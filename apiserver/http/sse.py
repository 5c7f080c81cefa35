"""A chunk to the bytes of one server-sent event."""

import msgspec

from apiserver.protocol.exchange import Chunk, Spliced

_encode = msgspec.json.Encoder().encode


def encode(chunk: Chunk) -> bytes:
    """One `data:` line, after an `event:` line where the dialect names its events; a blank line ends it."""
    document = chunk.document
    if type(document) is Spliced:
        data = b"".join((b"data: ", *document.parts, b"\n\n"))
    else:
        data = b"data: " + _encode(document) + b"\n\n"
    return data if chunk.event is None else b"event: " + chunk.event.encode() + b"\n" + data

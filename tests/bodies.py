"""A whole answer as its client gets it, from what a dialect made of it."""

import json
from typing import Any

import msgspec

from apiserver.protocol.exchange import Body, Pieces


def bytes_of(body: Body) -> bytes:
    document = body.document
    if isinstance(document, Pieces):
        return b"".join(document.pieces)
    return document if isinstance(document, bytes) else msgspec.json.encode(document)


def read(body: Body) -> Any:
    return json.loads(bytes_of(body))

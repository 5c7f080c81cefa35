"""The answer to what never became a request, as bytes: below the application, nobody else makes one."""

from http import HTTPStatus
from urllib.parse import unquote

import httptools
import msgspec

from apiserver.errors import ApiError
from apiserver.protocol.exchange import Dialect


def refusal(error: ApiError, dialect: Dialect) -> bytes:
    """Head and body. The connection is closed behind it."""
    body = msgspec.json.encode(dialect.error(error))
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def path_of(target: bytes) -> str:
    """What has arrived of a request's target, as its path; empty where that is none (yet)."""
    try:
        path: bytes | None = httptools.parse_url(target).path
    except httptools.HttpParserError:
        return ""
    return unquote((path or b"").decode("latin-1"))

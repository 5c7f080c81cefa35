"""The answer to what never became a request, as bytes: below the application, nobody else makes one."""

from http import HTTPStatus

import msgspec

from apiserver.errors import ApiError
from apiserver.protocol.openai import error_document


def refusal(error: ApiError) -> bytes:
    """Head and body. The connection is closed behind it."""
    body = msgspec.json.encode(error_document(error))
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body

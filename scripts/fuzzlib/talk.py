"""One connection: send an input, read whatever comes, and say what it was."""

import asyncio
import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fuzzlib.inputs import Input

_ANSWER_SECONDS = 30.0  # a server that has not said a word, or not its last one, by then has hung
_MOST_SECONDS = 90.0  # for all of it, however steadily something comes
_DOUBT_SECONDS = 0.25  # how long what may be waiting for more of us may say nothing
_MOST_READ = 1 << 26
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_INTERNAL = re.compile(rb'"type": ?"(?:InternalServerError|api_error)"|"code": ?"server_error"')


@dataclass(slots=True)
class Said:
    """What came back."""

    statuses: list[int] = field(default_factory=list[int])
    ended: str = "closed"
    """closed; waits (for more of us: then we left); hung."""
    fault: str = ""
    """What should not have come; empty: nothing."""


async def talk(host: str, port: int, one: Input) -> Said:
    """Send it on a connection of its own, and listen meanwhile: a server need not read all before it answers."""
    said = Said()
    reader, writer = await asyncio.open_connection(host, port)
    heard = bytearray()
    sending = asyncio.create_task(_send(writer, one))
    try:
        async with asyncio.timeout(_MOST_SECONDS):
            await _listen(reader, heard, one, said)
    except TimeoutError:
        said.ended = "hung"
    finally:
        sending.cancel()
        writer.transport.abort()
        await asyncio.gather(sending, return_exceptions=True)
    _judge(bytes(heard), one, said)
    return said


async def _send(writer: asyncio.StreamWriter, one: Input) -> None:
    with contextlib.suppress(ConnectionError):  # it was refused before it was sent
        for piece in one.pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)


async def _listen(reader: asyncio.StreamReader, heard: bytearray, one: Input, said: Said) -> None:
    patience = _ANSWER_SECONDS if one.must_answer else _DOUBT_SECONDS
    while len(heard) < _MOST_READ:
        try:
            data = await asyncio.wait_for(reader.read(1 << 16), patience)
        except TimeoutError:
            said.ended = "hung" if one.must_answer else "waits"
            return
        except ConnectionError:
            return
        if not data:
            return
        heard += data


def _judge(heard: bytes, one: Input, said: Said) -> None:
    at = 0
    while match := _STATUS.match(heard, at):
        status = int(match[1])
        said.statuses.append(status)
        head_end = heard.find(b"\r\n\r\n", at)
        if head_end < 0:
            said.fault = "a head without an end"
            return
        head, start = heard[at : head_end + 2], head_end + 4
        length = _LENGTH.search(head)
        if length is None:
            at = _after_chunks(heard, start)
        else:
            # What is no HTTP is refused before anybody knows whether it was a HEAD.
            has_body = not one.data.startswith(b"HEAD ") or heard[start : start + 5] not in (b"", b"HTTP/")
            at = start + int(length[1]) * has_body
        said.fault = said.fault or _fault_of(status, heard[start:at], one)
        if status >= 400 and status not in one.may_be and length is None:
            said.fault = said.fault or "an error without a length"
    if at < len(heard) and said.ended == "closed" and not said.fault:
        said.fault = "bytes behind the last answer"
    if said.ended == "hung":
        said.fault = "no end"
    elif one.must_answer and not said.statuses:
        said.fault = "no answer"


def _after_chunks(heard: bytes, at: int) -> int:
    """Where the chunked body that begins here ends; the end of all if it has none."""
    while (line_end := heard.find(b"\r\n", at)) >= 0:
        size_text = heard[at:line_end]
        if not re.fullmatch(rb"[0-9a-fA-F]+", size_text):
            return at
        size = int(size_text, 16)
        at = line_end + 2 + size + 2
        if size == 0:
            return at
    return len(heard)


def _fault_of(status: int, body: bytes, one: Input) -> str:
    if status >= 500 and status not in one.may_be:
        return f"status {status}"
    if status == 200 and _INTERNAL.search(body):
        return "an internal error in a stream"
    if status >= 400 and body and not _is_error(body, one):
        return "an error in no form that we have"
    return ""


def _is_error(body: bytes, one: Input) -> bool:
    try:
        document: Any = json.loads(body)
    except ValueError:
        return False
    return any(_has(document, form) for form in forms_of(one.path))


def _has(document: Any, form: Sequence[str]) -> bool:
    for name in form:
        outer, _, inner = name.partition(".")
        if not isinstance(document, dict) or outer not in document:
            return False
        if inner and not _has(document[outer], (inner,)):
            return False
    return True


_OPENAI = ("error.message", "error.type", "error.param", "error.code")
_ANTHROPIC = ("type", "error.type", "error.message", "request_id")
_COHERE = ("message",)


def forms_of(path: str) -> Sequence[Sequence[str]]:
    """How the errors of a path look. What breaks before its path is known is refused in OpenAI's form."""
    if path.startswith("/v1/messages"):
        return (_ANTHROPIC, _OPENAI)
    if path == "/v2/rerank":
        return (_COHERE, _OPENAI)
    if path:
        return (_OPENAI, _ANTHROPIC)  # the latter where a route has no dialect, and the client says which it speaks
    return (_OPENAI, _ANTHROPIC, _COHERE, ("status",))

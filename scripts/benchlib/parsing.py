"""Bytes of a response in, its body and the times of its token events out; without I/O."""

import re

_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked")
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close")
_EVENTS = re.compile(rb"\r\ncontent-type:[ \t]*text/event-stream")

# A quote inside a JSON string is escaped, so these keys cannot be faked by generated text.
_KEYS = rb'"(?:content|text|reasoning_content|reasoning|arguments)": ?"'
_HAS_TEXT = re.compile(_KEYS + rb'(?!")')
_HAS_EMPTY_TEXT = re.compile(_KEYS + rb'"')
_OPENS_OR_ENDS = re.compile(rb'"(?:role|finish_reason)": ?"')


class ReplyError(Exception):
    """The server sent something that is no HTTP/1.1 reply to our request; the message is the kind of failure."""


class ResponseParser:
    """The bytes of one HTTP/1.1 response in, the bytes of its body out; however the network cut them.

    A chunk of a chunked body is given out when it is whole.
    """

    __slots__ = ("_chunked", "_held", "_left", "closes", "head", "is_done", "is_event_stream", "status")

    def __init__(self) -> None:
        self.status = 0
        self.head = b""
        self.is_event_stream = False
        self.closes = False
        self.is_done = False
        self._chunked = False
        self._left: int | None = None
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """The part of the body that `data` completes. Raises ReplyError on what is not HTTP."""
        if not self.status:
            data = self._held + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._held = data
                return b""
            self._held = b""
            self._read_head(data[: end + 2])
            data = data[end + 4 :]
        return self._dechunk(data) if self._chunked else self._take(data)

    def end(self) -> bool:
        """The connection is closed; whether that is how this body ends, having announced no length."""
        return self.is_done or (self.status != 0 and not self._chunked and self._left is None)

    def _read_head(self, head: bytes) -> None:
        if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
            raise ReplyError("not an HTTP reply")
        self.status = int(head[9:12])
        self.head = lower = head.lower()
        self.is_event_stream = _EVENTS.search(lower) is not None
        self._chunked = _CHUNKED.search(lower) is not None
        length = _LENGTH.search(lower)
        if self.status == 204:
            self._left = 0
        elif length is not None and not self._chunked:
            self._left = int(length[1])
        self.closes = _CLOSE.search(lower) is not None or (not self._chunked and self._left is None)

    def _take(self, data: bytes) -> bytes:
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                raise ReplyError("bytes after the reply")
            self.is_done = self._left == 0
        return data

    def _dechunk(self, data: bytes) -> bytes:
        if self._held:
            data = self._held + data
        pieces: list[bytes] = []
        at = 0
        while (line_end := data.find(b"\r\n", at)) >= 0:
            size = _chunk_size(data[at:line_end])
            if size == 0:
                # Trailers, if there are any, lie between here and the empty line.
                end = data.find(b"\r\n\r\n", line_end)
                if end < 0:
                    break
                at = end + 4
                self.is_done = True
                if at < len(data):
                    raise ReplyError("bytes after the reply")
                break
            start = line_end + 2
            if len(data) < start + size + 2:
                break
            pieces.append(data[start : start + size])
            at = start + size + 2
        self._held = data[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _chunk_size(line: bytes) -> int:
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError as error:
        raise ReplyError("bad chunk size") from error


class EventScanner:
    """The body of an event stream in, the times of its token events out, without decoding any.

    A token event is a frame with text in it. Of the frames whose text is empty (half a character, a special token),
    the one that opens a chat (it has a role) and a separate last one (it has a finish_reason) are not token events,
    nor is the one that only has usage.
    """

    __slots__ = ("_cut", "_separator", "is_done", "last_event", "token_times")

    def __init__(self) -> None:
        self.token_times: list[float] = []
        self.last_event = b""
        self.is_done = False
        self._separator = b""
        self._cut = b""

    def feed(self, payload: bytes, now: float) -> None:
        """Look at the frames that `payload` completes; they came at `now`. The one place that runs per token."""
        if self._cut:
            payload = self._cut + payload
        if not self._separator:
            newline = payload.find(b"\n")
            if newline < 0:
                self._cut = payload
                return
            self._separator = b"\r\n\r\n" if payload[newline - 1 : newline] == b"\r" else b"\n\n"
        frames = payload.split(self._separator)
        self._cut = frames.pop()
        for frame in frames:
            if _HAS_TEXT.search(frame) is not None:
                self.token_times.append(now)
                self.last_event = frame
            else:
                self._see_other(frame, now)

    def _see_other(self, frame: bytes, now: float) -> None:
        if b"data: [DONE]" in frame or b"data:[DONE]" in frame:
            self.is_done = True
        elif b"data:" in frame:
            self.last_event = frame
            if _HAS_EMPTY_TEXT.search(frame) is not None and _OPENS_OR_ENDS.search(frame) is None:
                self.token_times.append(now)

    @property
    def last_document(self) -> bytes:
        """The JSON of the last event before [DONE]: usage, or an error."""
        return self.last_event.rpartition(b"data:")[2].strip()

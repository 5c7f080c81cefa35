"""How long a connection waits for its client: for a body that trickles, and for somebody who does not read.

Both are asked by the sweep, once a second for each connection, and cost a request nothing.
"""

import asyncio
import fcntl
import sys
import termios

BODY_BYTES_PER_SECOND = 1024
"""Who sends a body more slowly than this uses up our patience with it."""


class BodyPace:
    """A body may pause for so many seconds, altogether; each kilobyte that arrives gives one of them back."""

    __slots__ = ("_asked", "_began", "_left", "_seen")

    def __init__(self) -> None:
        self._began = self._asked = self._left = 0.0
        self._seen = 0

    def is_too_slow(self, now: float, began: float, arrived: int, most: float, *, paused: bool) -> bool:
        """`began` tells one body from the next; `arrived` are its bytes so far; it is not to blame for a time in which
        we `paused` reading."""
        if began != self._began:
            self._began = self._asked = began
            self._left, self._seen = most, 0
        if not paused:
            self._left -= now - self._asked
        self._left = min(most, self._left + (arrived - self._seen) / BODY_BYTES_PER_SECOND)
        self._asked, self._seen = now, arrived
        return self._left < 0


def unsent_bytes(transport: asyncio.WriteTransport) -> int:
    """What its client has yet to take: the transport's buffer and then the kernel's. The kernel's alone counts as none:
    nothing of ours waits for it."""
    here = transport.get_write_buffer_size()
    if not here:
        return 0
    # The kernel takes more only when a good part of what it has is gone: only its own count tells of a slow reader.
    queued = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
    return here + int.from_bytes(queued, sys.byteorder)


class SendWatch:
    """Whether a client has read nothing for too long. What waits for it is bounded: nothing more is written while the
    transport's buffer is over its high-water mark."""

    __slots__ = ("_since", "_unsent")

    def __init__(self) -> None:
        self._unsent = 0
        self._since = 0.0

    def is_stuck(self, now: float, unsent: int, most: float) -> bool:
        """`unsent` are the bytes that wait now. Less than before, or none, is progress."""
        if unsent < self._unsent or self._unsent == 0:
            self._since = now
        self._unsent = unsent
        return unsent > 0 and now - self._since > most

"""How long a connection waits for its client: for a body that trickles, and for somebody who does not read.

Both are asked by the sweep, once a second for each connection, and cost a request nothing.
"""

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


class SendWatch:
    """Whether a client has read nothing for too long. What waits for it is in the transport's buffer, which grows no
    further than the piece that went over its high-water mark."""

    __slots__ = ("_since", "_unsent")

    def __init__(self) -> None:
        self._unsent = 0
        self._since = 0.0

    def is_stuck(self, now: float, unsent: int, most: float) -> bool:
        """`unsent` are the bytes that wait now. Less than before, or none, is progress."""
        if unsent == 0 or unsent < self._unsent or self._unsent == 0:
            self._since = now
        self._unsent = unsent
        return unsent > 0 and now - self._since > most

"""For how long a number has not changed: a heartbeat, or the time of the last output."""

MOST_SECONDS_A_LOOK = 0.25
"""A look that comes later than this counts for no more: we stood still ourselves (a paused container, a starved
machine), so whoever we watch may have done so too, for no fault of its own."""


class Stillness:
    """Look often; `seconds` are those in which the watched number did not change while we were awake."""

    __slots__ = ("_last", "seconds")

    def __init__(self) -> None:
        self._last: int | None = None
        self.seconds = 0.0

    def look(self, value: int, seconds_since_last_look: float) -> float:
        """Returns the new `seconds`."""
        if value == self._last:
            self.seconds += min(seconds_since_last_look, MOST_SECONDS_A_LOOK)
        else:
            self._last = value
            self.seconds = 0.0
        return self.seconds

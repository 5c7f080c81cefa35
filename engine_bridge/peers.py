"""When each API server on another machine was last heard: a cut cable says nothing, so silence must be noticed."""

from collections.abc import Iterator

_LATE_SECONDS = 1.0  # if we look later than this after the last look, we stood still ourselves


class Peers:
    """Those who promised heartbeats. Times are the loop's, in seconds."""

    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self._heard: dict[bytes, float] = {}
        self._looked = 0.0

    def __contains__(self, identity: bytes) -> bool:
        return identity in self._heard

    def expect(self, identity: bytes, now: float) -> None:
        """It said Hello, and will go on."""
        self._heard[identity] = now

    def hear(self, identity: bytes, now: float) -> None:
        if identity in self._heard:
            self._heard[identity] = now

    def forget(self, identity: bytes) -> None:
        self._heard.pop(identity, None)

    def silent(self, now: float) -> Iterator[bytes]:
        """Those not heard for longer than the limit; to be called several times a second."""
        if now - self._looked > _LATE_SECONDS:
            # What they said meanwhile waits in the socket; it is not for us to call them silent.
            self._heard = dict.fromkeys(self._heard, now)
        self._looked = now
        yield from [identity for identity, heard in self._heard.items() if now - heard > self.limit_seconds]

"""Stop strings: text in, text out, and never a part of a stop string in between.

The match that *completes* first ends the text (of two that complete together, the longer). That is a property of the
text alone, so the answer does not depend on how the tokens cut it.
"""


class StopChecker:
    """Feed text; what may still become a stop string is held back until it is decided."""

    __slots__ = ("_first_characters", "_held", "_longest", "_stops", "matched")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._first_characters = frozenset(stop[0] for stop in stops)
        self._longest = max(map(len, stops))
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, *, may_end: bool = True) -> str:
        """The text that is certain. Sets `matched` when a stop string completed; feed nothing more then.

        With `may_end=False` (before min_tokens) a stop string that completes is text like any other; one that has only
        begun may still complete later.
        """
        known = len(self._held)
        buffer = self._held + text
        match = self._first_match(buffer, known) if may_end else None
        if match is not None:
            start, self.matched = match
            self._held = ""
            return buffer[:start]
        keep = self._undecided(buffer)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """The generation ended otherwise: what was held back is text after all."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, buffer: str, known: int) -> tuple[int, str] | None:
        """The match that completes first, behind the `known` characters that were looked at before."""
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = buffer.find(stop, max(0, known + 1 - len(stop)))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _undecided(self, buffer: str) -> int:
        """Length of the longest end of the buffer that begins a stop string and is not all of it."""
        size = len(buffer)
        for start in range(max(0, size - self._longest + 1), size):
            # Most characters begin no stop string; without this test 64 long stop strings cost milliseconds a token.
            if buffer[start] in self._first_characters:
                end = buffer[start:]
                if any(stop.startswith(end) for stop in self._stops if len(stop) > len(end)):
                    return size - start
        return 0

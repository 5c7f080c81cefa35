"""Text that arrives in pieces, read as if it were there: a parser is a generator that waits for more by yielding.

What a reading decides depends on the text alone and never on where its pieces end, so a streamed answer is read like
a whole one. Nothing is looked at twice but the few characters that may still become a marker: the work is linear.
"""

import re
from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

T = TypeVar("T")

Reading = Generator[None, None, T]
"""Yields where more text is needed; the end of the text is told by `Source.ended`."""

Emit = Callable[[str], None]

SPACES = re.compile(r"[ \t\r\n]*")


class Markers:
    """Strings to look for. None may be a part of another: else the first to be found would depend on the pieces."""

    __slots__ = ("_firsts", "_longest", "none_begins", "search", "words")

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        self.search = re.compile("|".join(map(re.escape, self.words)) or r"(?!)").search
        self._firsts = frozenset(word[0] for word in self.words)
        no_first = f"[^{re.escape(''.join(sorted(self._firsts)))}]*" if self.words else r"(?s:.*)"
        self.none_begins = re.compile(no_first).fullmatch
        """Whether a text has nothing in it that may begin a marker."""
        self._longest = max(map(len, self.words), default=0)

    def undecided(self, text: str, start: int) -> int:
        """How many characters at the end of `text[start:]` may be the beginning of a marker."""
        size = len(text)
        for at in range(max(start, size - self._longest + 1), size):
            if text[at] in self._firsts:
                end = text[at:]
                if any(word.startswith(end) for word in self.words):
                    return size - at
        return 0


class Source:
    """One answer's text. `feed` it, then resume the reading; set `ended` and resume once more for the end."""

    __slots__ = ("_at", "_buffer", "_record", "emit_plain", "ended", "is_plain")

    def __init__(self) -> None:
        self._buffer = ""
        self._at = 0
        self._record: list[str] | None = None
        self.ended = False
        self.is_plain: Callable[[str], object] | None = None
        """Set while the reading waits with nothing held back: text that this accepts may go to `emit_plain` at once.
        Most of an answer is such text, and resuming a reading for each token would cost three times as much."""
        self.emit_plain: Emit = _nobody

    def feed(self, text: str) -> None:
        self._buffer = self._buffer[self._at :] + text
        self._at = 0

    def _take(self, end: int) -> str:
        """The buffer's text up to `end`, which counts as read from now on."""
        text = self._buffer[self._at : end]
        self._at = end
        if self._record is not None and text:
            self._record.append(text)
        return text

    # ---- going back ----

    def record(self, text: str) -> None:
        """Remember what is read from now on, behind `text`: it may turn out to be something else."""
        self._record = [text]

    def recorded(self) -> str:
        """What was read since `record`; nothing if that was forgotten meanwhile."""
        record, self._record = self._record, None
        return "".join(record or ())

    def forget(self) -> None:
        """What was read is what it seemed to be."""
        self._record = None

    # ---- readings ----

    def until(self, markers: Markers, emit: Emit) -> Reading[str]:
        """Give the text before the first marker to `emit`, piece by piece; read the marker and return it.
        "" is the end of the text."""
        while True:
            found = markers.search(self._buffer, self._at)
            if found is not None:
                text = self._take(found.start())
                if text:
                    emit(text)
                return self._take(found.end())
            size = len(self._buffer)
            sure = size if self.ended else size - markers.undecided(self._buffer, self._at)
            if sure > self._at:
                emit(self._take(sure))
            if self.ended:
                return ""
            yield from self._wait(markers.none_begins, emit)

    def _wait(self, is_plain: Callable[[str], object], emit: Emit) -> Reading[None]:
        if self._at == len(self._buffer) and self._record is None:
            self.is_plain, self.emit_plain = is_plain, emit
        yield
        self.is_plain = None

    def peek(self) -> Reading[str]:
        """The next character, left where it is; "" is the end of the text."""
        while self._at == len(self._buffer) and not self.ended:
            yield
        return self._buffer[self._at : self._at + 1]

    def next_is(self, *words: str) -> Reading[str]:
        """Which of these words comes next, left where it is; "" is none. Of two that both do, the earlier named."""
        while True:
            rest = self._buffer[self._at : self._at + max(map(len, words))]
            undecided = False
            for word in words:
                if rest.startswith(word):
                    return word
                if word.startswith(rest) and not self.ended:
                    undecided = True
                    break
            if not undecided:
                return ""
            yield

    def takes(self, *words: str) -> Reading[str]:
        """As next_is, and read it."""
        word = yield from self.next_is(*words)
        self._take(self._at + len(word))
        return word

    def run_of(self, characters: re.Pattern[str], emit: Emit) -> Reading[None]:
        """Give the characters that the pattern (a class with a star) matches here to `emit`, as they come."""
        while True:
            found = characters.match(self._buffer, self._at)
            assert found is not None
            if found.end() > self._at:
                emit(self._take(found.end()))
            if self._at < len(self._buffer) or self.ended:
                return
            yield from self._wait(characters.fullmatch, emit)

    def spaces(self) -> Reading[None]:
        yield from self.run_of(SPACES, _nobody)

    def one(self) -> str:
        """Read the character that `peek` showed."""
        return self._take(self._at + 1)

    def until_followed(self, end: str, followers: tuple[str, ...], emit: Emit) -> Reading[bool]:
        """As `until` one marker that counts only if one of the followers, or the end of the text, comes behind it (and
        behind white space, which is read too): elsewhere it is text. False at the end of a text without it."""
        markers = Markers((end,))
        while (yield from self.until(markers, emit)):
            spaces: list[str] = []
            yield from self.run_of(SPACES, spaces.append)
            if (yield from self.next_is(*followers)) or not (yield from self.peek()):
                return True
            emit("".join((end, *spaces)))
        return False

    def collect(self, markers: Markers, most: int) -> Reading[tuple[str, str] | None]:
        """The text before a marker, and the marker; None where none comes within `most` characters."""
        parts: list[str] = []
        size = 0
        while True:
            found = markers.search(self._buffer, self._at)
            if found is not None and size + found.start() - self._at <= most:
                parts.append(self._take(found.start()))
                return "".join(parts), self._take(found.end())
            if found is not None or self.ended:
                return None
            sure = len(self._buffer) - markers.undecided(self._buffer, self._at)
            size += sure - self._at
            parts.append(self._take(sure))
            if size > most:
                return None
            yield


def _nobody(text: str) -> None:
    pass

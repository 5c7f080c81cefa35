"""What a parser makes of an answer: content, reasoning and tool calls, in the order in which they were made.

White space beside a tool call or around reasoning belongs to the format and not to the text: it is held back until it
is known what follows it, and dropped where that is a marker.
"""

import random
from typing import Literal

from apiserver.events import TokenLogprob

Kind = Literal["content", "reasoning", "call"]

_SPACES = " \t\r\n"


class Piece:
    """More of one kind. The first piece of a call has its `id` and `name`; `call` counts from 0.

    A parser knows no tokens: whoever feeds it puts their ids and logprobs here.
    """

    __slots__ = ("call", "id", "kind", "logprobs", "name", "text", "token_ids")

    def __init__(self, kind: Kind, text: str, call: int = 0, id: str | None = None, name: str | None = None) -> None:
        self.kind: Kind = kind
        self.text = text
        self.call = call
        self.id = id
        self.name = name
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] | None = None


class Output:
    """Parsers write here; `take` gives what has come since."""

    __slots__ = ("_gap", "_muted", "_parallel", "_pieces", "_trims", "calls", "has_spoken", "in_reasoning")

    def __init__(self, *, parallel: bool = True) -> None:
        self._parallel = parallel
        self._pieces: list[Piece] = []
        self._gap: list[str] = []  # white space whose fate is open
        self._trims = False  # whether white space that comes now is dropped
        self._muted = False
        self.calls = 0
        self.has_spoken = False
        """Whether there was content since the beginning, or since the last call or reasoning."""
        self.in_reasoning = False

    def take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def content(self, text: str) -> None:
        self._say("content", text)

    def think(self) -> None:
        """What follows as reasoning() is a piece of reasoning of its own."""
        self._turn()
        self.in_reasoning = True

    def reasoning(self, text: str) -> None:
        self._say("reasoning", text)

    def think_no_more(self) -> None:
        self._turn()
        self.in_reasoning = False

    def begin(self, name: str) -> None:
        """A call of this tool; what follows as arguments() are its arguments."""
        self._turn()
        self._muted = self.calls > 0 and not self._parallel
        if not self._muted:
            self._pieces.append(Piece("call", "", self.calls, _new_call_id(), name))
            self.calls += 1

    def arguments(self, text: str) -> None:
        if text and not self._muted:
            self._pieces.append(Piece("call", text, self.calls - 1))

    def end(self) -> None:
        """The answer is over: white space at its end is text."""
        self._flush("reasoning" if self.in_reasoning else "content")

    def _turn(self) -> None:
        """Between two kinds."""
        self._gap.clear()
        self._trims = True
        self.has_spoken = False

    def _say(self, kind: Kind, text: str) -> None:
        if self._trims:
            text = text.lstrip(_SPACES)
            if not text:
                return
            self._trims = False
        said = text.rstrip(_SPACES)
        if said:
            if kind == "content":
                self.has_spoken = True
            if self._gap:
                self._gap.append(said)
                self._flush(kind)
            else:
                self._pieces.append(Piece(kind, said))
        if len(said) != len(text):
            self._gap.append(text[len(said) :])

    def _flush(self, kind: Kind) -> None:
        if self._gap:
            self._pieces.append(Piece(kind, "".join(self._gap)))
            self._gap.clear()


def _new_call_id() -> str:
    """Seeded anew in every forked process."""
    return f"call_{random.getrandbits(96):024x}"

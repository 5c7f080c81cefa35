"""Texts that nobody else says, and prompts that set off a fault in the simulated engine."""

from random import Random

TROUBLES = {
    "error": ("\x01", "error:1:6"),  # this request fails after six tokens
    "refuse": ("\x02", "refuse:2"),  # the engine's queue is full for it
    "slow": ("\x03", "slow:3:0.7"),  # a step of 0.7 s, for everybody
    "stall": ("\x04", "stall:4:4"),  # no output any more, for nobody
    "hang": ("\x05", "hang:5:4"),  # the engine's loop stands still
    "crash": ("\x06", "crash:6:4"),  # the engine dies
}
"""By name: the character in a prompt, and the engine's `--fault`."""

FAULT_ARGUMENTS = tuple(word for _, fault in TROUBLES.values() for word in ("--fault", fault))

ECHO_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""With it and `--mode echo` the engine answers exactly what it is told."""

_WORDS = [
    "tea,",
    "größer",
    "naïve",
    "北京",
    "слово",
    "🙂",
    "the",
    "of",
    "{json}",
    '"quoted"',
    "back\\slash",
    "<b>",
    "&",
    "line\nbreak",
    "zero\u200bwidth",
    "é",
]


class Texts:
    """One client's: each text begins with the client's name and a number that does not come again."""

    def __init__(self, rng: Random, name: str) -> None:
        self._rng = rng
        self._name = name
        self._number = 0

    def mark(self) -> str:
        self._number += 1
        return f"[{self._name}.{self._number}]"

    def text(self, words: int) -> str:
        return " ".join([self.mark(), *self._rng.choices(_WORDS, k=words), "."])

    def short(self) -> str:
        return self.text(self._rng.randrange(1, 12))

    def plain(self, length: int) -> str:
        """ASCII, so that a byte is a character."""
        mark = self.mark()
        return mark + "".join(self._rng.choices("abcdefghijklmnopqrstuvwxyz ", k=length)) + "."

    def long(self) -> str:
        return self.plain(self._rng.randrange(8_000, 24_000))

"""How long preprocessing will take: measured on this process's own encoder, told before the work is done."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from apiserver.requests import Chat, Prompt, Text, TokenIds
from apiserver.tokenizer import Encoder

_SAMPLE_CHARACTERS = 6000
_REPEATS = 5
_PER_MESSAGE_SECONDS = 5e-6  # rendering; compiled templates cost microseconds a message
_PER_ID_SECONDS = 6e-8  # checking and packing ids that came as ids


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that an encoder takes: for each text, and for each of its characters."""

    per_text: float
    per_character: float

    def seconds(self, prompts: Iterable[Prompt]) -> float:
        """The estimate for all prompts of a request together: many short ones hold a loop as surely as one long one."""
        return sum(self._seconds(prompt) for prompt in prompts)

    def _seconds(self, prompt: Prompt) -> float:
        match prompt:
            case Text():
                return self.per_text + len(prompt.text) * self.per_character
            case TokenIds():
                return len(prompt.token_ids) * _PER_ID_SECONDS
            case Chat():
                characters = sum(map(_characters, prompt.messages)) + sum(map(_characters, prompt.tools or ()))
                messages = len(prompt.messages) + len(prompt.tools or ())
                return self.per_text + messages * _PER_MESSAGE_SECONDS + characters * self.per_character


def _characters(value: Any) -> int:
    """The characters of all strings inside a message or a tool."""
    match value:
        case str():
            return len(value)
        case Mapping():
            return sum(map(_characters, cast(Mapping[str, Any], value).values()))
        case list():
            return sum(map(_characters, cast(list[Any], value)))
        case _:
            return 0


def measure(encoder: Encoder) -> Pace:
    """Encode texts that were not seen before (a repeated one is cached and looks twice as fast); also the warm-up."""
    encoder.encode("warm-up: the first call builds tables", add_special_tokens=False)
    short = min(_time(encoder, f"short text {number}") for number in range(_REPEATS))
    long = min(_time(encoder, _text(number)) for number in range(_REPEATS))
    return Pace(short, max(0.0, long - short) / _SAMPLE_CHARACTERS)


def _time(encoder: Encoder, text: str) -> float:
    began = time.perf_counter()
    encoder.encode(text, add_special_tokens=False)
    return time.perf_counter() - began


def _text(number: int) -> str:
    """Words that no earlier text had, with the punctuation and numbers of prose."""
    words: list[str] = []
    size = 0
    state = number * 7919 + 1
    while size < _SAMPLE_CHARACTERS:
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        word = "".join(chr(97 + (state >> shift) % 26) for shift in range(3, 3 + 2 + state % 7))
        words.append(word if state % 11 else f"{word}, {state % 1000}.\n")
        size += len(words[-1]) + 1
    return " ".join(words)[:_SAMPLE_CHARACTERS]

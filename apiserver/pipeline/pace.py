"""How long preprocessing will take: measured on this process's own encoder, told before the work is done."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from apiserver.requests import (
    Chat,
    DetokenizeJob,
    GenerateJob,
    Job,
    Prompt,
    RenderJob,
    Text,
    TokenIds,
    TokenizeJob,
)
from apiserver.tokenizer import Encoder

_SAMPLE_CHARACTERS = 6000
_REPEATS = 5
_PER_PROMPT_SECONDS = 1.5e-6  # checks and packing
_PER_MESSAGE_SECONDS = 5e-6  # rendering; compiled templates cost microseconds a message
_PER_ID_SECONDS = 6e-8  # checking and packing ids that came as ids
_PER_DECODED_ID_SECONDS = 4e-7  # where the text that ids stand for is wanted
_PER_TOKEN_TEXT_SECONDS = 5e-8  # for each character, where each token's own text is wanted
_CHARACTERS_OF_A_VALUE = 4  # of a number, a null, an empty list: nothing in JSON is free to print

# A text that is one long word, or of no words at all, takes up to six times as long as prose of its length. It is held
# to a laxer limit: five milliseconds where prose may take two.
_LAXITY = 2.5


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that an encoder takes: for each text, and for each of its characters."""

    per_text: float
    per_character: float

    def seconds(self, job: Job, enough: float) -> float:
        """The estimate for all of a job: many short prompts hold a loop as surely as one long one.

        It is not added up beyond `enough`: adding up what is in 32 MB would itself hold the loop.
        """
        per_character, per_id = self.per_character, _PER_ID_SECONDS
        match job:
            case TokenizeJob(with_token_texts=True):
                per_character += _PER_TOKEN_TEXT_SECONDS
            case DetokenizeJob() | RenderJob():
                per_id = _PER_DECODED_ID_SECONDS
            case GenerateJob() if job.echo or job.sampling_params.logprobs is not None:
                per_id = _PER_DECODED_ID_SECONDS
            case _:
                pass
        total = 0.0
        for prompt in job.prompts:
            total += _PER_PROMPT_SECONDS + self._seconds(prompt, per_character, per_id, enough)
            if total > enough:
                break
        return total

    def _seconds(self, prompt: Prompt, per_character: float, per_id: float, enough: float) -> float:
        match prompt:
            case Text():
                return self.per_text + len(prompt.text) * per_character
            case TokenIds():
                return len(prompt.token_ids) * per_id
            case Chat():
                shown = (prompt.messages, prompt.tools or [], prompt.documents or [])
                rendering = sum(map(len, shown)) * _PER_MESSAGE_SECONDS
                if rendering > enough:
                    return rendering
                most = enough / per_character if per_character else math.inf
                return self.per_text + rendering + _characters([*shown, dict(prompt.variables)], most) * per_character


def _characters(values: list[Any], most: float) -> int:
    """The characters of all strings in plain JSON data, about; not counted beyond `most`. Nothing here recurses, so
    nesting may be as deep as the decoder lets it be."""
    total = 0
    pending = values
    while pending and total <= most:
        value = pending.pop()
        if isinstance(value, str):
            total += len(value)
            continue
        total += _CHARACTERS_OF_A_VALUE
        if isinstance(value, dict):
            fields = cast(dict[str, Any], value)
            pending += fields.keys()
            pending += fields.values()
        elif isinstance(value, list):
            pending += cast(list[Any], value)
    return total


def measure(encoder: Encoder) -> Pace:
    """Encode texts that were not seen before (a repeated one is cached and looks twice as fast); also the warm-up."""
    encoder.encode("warm-up: the first call builds tables", add_special_tokens=False)
    short = _fastest(encoder, lambda number: f"short text {number}")
    prose, *dear = (_fastest(encoder, make) for make in (_prose, _white_space, _han))
    per_character = max(prose, *(seconds / _LAXITY for seconds in dear)) - short
    return Pace(short, max(0.0, per_character) / _SAMPLE_CHARACTERS)


def _fastest(encoder: Encoder, make: Callable[[int], str]) -> float:
    return min(_time(encoder, make(number)) for number in range(_REPEATS))


def _time(encoder: Encoder, text: str) -> float:
    began = time.perf_counter()
    encoder.encode(text, add_special_tokens=False)
    return time.perf_counter() - began


def _prose(number: int) -> str:
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


def _white_space(number: int) -> str:
    return " " * (_SAMPLE_CHARACTERS - number)  # of another length each time: whole words are remembered


def _han(number: int) -> str:
    return "".join(chr(0x4E00 + (number * 997 + place * 31) % 20_000) for place in range(_SAMPLE_CHARACTERS))

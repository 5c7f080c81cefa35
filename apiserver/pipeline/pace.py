"""How long preprocessing will take: measured on this process's own encoder, told before the work is done.

It is the text that decides. Prose is what an encoder is quick at; where no white space breaks it, or where there is
nothing but that, a character takes up to ten times as long (fastokens on Qwen3: 7 and 93 ns). So a text that could be
slow is looked at in a few places; by chance, for nobody shall know which.
"""

import bisect
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any, cast

from apiserver.requests import Chat, DetokenizeJob, GenerateJob, PromptJob, RenderJob, Text, TokenIds, TokenizeJob
from apiserver.tokenizer import Encoder

_PROSE_CHARACTERS = 40_000  # words come back in a long text, and what has been seen is quick
_SAMPLE_CHARACTERS = 6000
_REPEATS = 3
_PER_PROMPT_SECONDS = 1.5e-6  # checks and packing
_PER_MESSAGE_SECONDS = 5e-6  # rendering; compiled templates cost microseconds a message
_PER_ID_SECONDS = 6e-8  # checking and packing ids that came as ids
_PER_DECODED_ID_SECONDS = 4e-7  # where the text that ids stand for is wanted
_PER_TOKEN_TEXT_SECONDS = 5e-8  # for each character, where each token's own text is wanted
_OTHER_VALUE = "null"  # what a number or a list counts as, besides what is in it: nothing in JSON is free to print

_LOOKS = 32
_LOOK_CHARACTERS = 32  # without a break in so many, it is no prose

_COMMON_WORDS = """\
the of and to in is that it was for on are as with his they at be this have from or one had by word but not what all
were we when your can said there use an each which she do how their if will up other about out many then them these so
some her would make like him into time has look two more write go see number no way could people my than first water
been call who oil its now find long down day did get come made may part over new sound take only little work know place
years live me back give most very after thing our just name good sentence man think say great where help through much
before line right too means old any same tell boy follow came want show also around form three small set put end does
another well large must big even such because turn here why ask went men read need land different home us move try kind
hand picture again change off play spell air away animal house point page letter mother answer found study still learn
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds that an encoder takes: for each text, for each character of prose, and of what no white space breaks."""

    per_text: float
    per_character: float
    per_unbroken_character: float

    def seconds(self, job: PromptJob, enough: float) -> float:
        """The estimate for all of a job: many short prompts hold a loop as surely as one long one.

        It is not added up beyond `enough`: adding up what is in 32 MB would itself hold the loop.
        """
        per_character, per_id = self._rates(job)
        total = 0.0
        texts: list[str] = []
        for prompt in job.prompts:
            total += _PER_PROMPT_SECONDS
            match prompt:
                case Text():
                    texts.append(prompt.text)
                    total += self.per_text + len(prompt.text) * per_character
                case TokenIds():
                    total += len(prompt.token_ids) * per_id
                case Chat():
                    total += self.per_text + _rendering_seconds(prompt)
                    left = max(0.0, enough - total)
                    found = _strings(prompt, left / per_character if per_character else math.inf)
                    texts += found
                    total += sum(map(len, found)) * per_character
            if total > enough:
                return total
        return total + self._unbroken_seconds(texts, enough)

    def _rates(self, job: PromptJob) -> tuple[float, float]:
        """Seconds a character and an id, with what this kind of job wants besides."""
        match job:
            case TokenizeJob(with_token_texts=True):
                return self.per_character + _PER_TOKEN_TEXT_SECONDS, _PER_ID_SECONDS
            case DetokenizeJob() | RenderJob():
                return self.per_character, _PER_DECODED_ID_SECONDS
            case GenerateJob() if job.echo or job.sampling_params.logprobs is not None:
                return self.per_character, _PER_DECODED_ID_SECONDS
            case _:
                return self.per_character, _PER_ID_SECONDS

    def _unbroken_seconds(self, texts: list[str], enough: float) -> float:
        """What the texts may take beyond that, where they are no prose."""
        characters = sum(map(len, texts))
        if characters * self.per_unbroken_character <= enough:
            return 0.0
        return characters * _unbroken_share(texts) * (self.per_unbroken_character - self.per_character)


def _rendering_seconds(chat: Chat) -> float:
    return (len(chat.messages) + len(chat.tools or ()) + len(chat.documents or ())) * _PER_MESSAGE_SECONDS


def _strings(chat: Chat, most: float) -> list[str]:
    """All that a template may print, about; no more of it than `most` characters and the string that goes beyond.

    Nothing here recurses, so nesting may be as deep as the decoder lets it be.
    """
    found: list[str] = []
    pending: list[Any] = [chat.messages, chat.tools, chat.documents, dict(chat.variables)]
    while pending and most > 0:
        value = pending.pop()
        if isinstance(value, str):
            text = value
        else:
            text = _OTHER_VALUE
            if isinstance(value, dict):
                pending += chain.from_iterable(cast(dict[str, Any], value).items())
            elif isinstance(value, list):
                pending += cast(list[Any], value)
        found.append(text)
        most -= len(text)
    return found


def _unbroken_share(texts: list[str]) -> float:
    """How much of the texts is long words, a script without spaces, or white space alone; by a few looks."""
    ends = list(accumulate(map(len, texts)))
    found = 0
    for _ in range(_LOOKS):
        place = random.randrange(ends[-1])
        number = bisect.bisect_right(ends, place)
        text = texts[number]
        start = min(len(text) - (ends[number] - place), max(0, len(text) - _LOOK_CHARACTERS))
        look = text[start : start + _LOOK_CHARACTERS]
        found += len(look) == _LOOK_CHARACTERS and len(look.split()) < 2
    return found / _LOOKS


def measure(encoder: Encoder) -> Pace:
    """Encode texts that were not seen before (a repeated one is cached and looks twice as fast); also the warm-up."""
    encoder.encode_packed("warm-up: the first call builds tables", add_special_tokens=False)
    short = _fastest(encoder, lambda number: f"short text {number}")
    prose = max(0.0, _fastest(encoder, _prose) - short) / _PROSE_CHARACTERS
    unbroken = max(_fastest(encoder, make) - short for make in (_word, _white_space, _han)) / _SAMPLE_CHARACTERS
    return Pace(short, prose, max(prose, unbroken))


def _fastest(encoder: Encoder, make: Callable[[int], str]) -> float:
    return min(_time(encoder, make(number)) for number in range(_REPEATS))


def _time(encoder: Encoder, text: str) -> float:
    began = time.perf_counter()
    encoder.encode_packed(text, add_special_tokens=False)
    return time.perf_counter() - began


def _prose(number: int) -> str:
    """Common words, and some that no earlier text had, with the punctuation and numbers of prose."""
    source = random.Random(number)
    common = _COMMON_WORDS.split()
    sentences: list[str] = []
    size = 0
    while size < _PROSE_CHARACTERS:
        rare = "".join(chr(source.randrange(97, 123)) for _ in range(source.randrange(4, 12)))
        sentences.append(f"{' '.join(source.choices(common, k=20))} {rare}, {source.randrange(1000)}.\n")
        size += len(sentences[-1])
    return "".join(sentences)[:_PROSE_CHARACTERS]


def _word(number: int) -> str:
    return chr(97 + number) * _SAMPLE_CHARACTERS


def _white_space(number: int) -> str:
    return " " * (_SAMPLE_CHARACTERS - number)  # of another length each time: whole words are remembered


def _han(number: int) -> str:
    return "".join(chr(0x4E00 + (number * 997 + place * 31) % 20_000) for place in range(_SAMPLE_CHARACTERS))

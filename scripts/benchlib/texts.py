"""English prose of any length, without a download: the standard library's own topics (pydoc_data, 465,000 characters).

For long prompts and for measuring tokenizers, where text of a few hundred words over and over would be too easy.
"""

import functools
import random
from collections.abc import Callable, Sequence
from itertools import cycle
from pydoc_data import topics

_CHARACTERS_PER_TOKEN = 5.2  # more than any tokenizer needs, so that one attempt is nearly always enough

Offsets = Callable[[str], Sequence[tuple[int, int]]]
"""Where each token of a text lies in it, in characters."""


@functools.cache
def paragraphs() -> tuple[str, ...]:
    """All of it, in pieces of some lines."""
    pieces = (piece.strip("\n") for text in topics.topics.values() for piece in text.split("\n\n"))
    return tuple(piece for piece in pieces if piece.strip())


def prose(characters: int) -> str:
    """That many characters, the same at each call; beyond what there is, it begins again."""
    pieces: list[str] = []
    length = 0
    for piece in cycle(paragraphs()):
        pieces.append(piece)
        length += len(piece) + 2
        if length >= characters:
            return "\n\n".join(pieces)[:characters]
    raise AssertionError("there are paragraphs")


def shuffled(rng: random.Random, tokens: int, offsets: Offsets) -> str:
    """A text of so many tokens in an order of paragraphs that no other has; cut after its last token."""
    text = ""
    while True:
        wanted = tokens * _CHARACTERS_PER_TOKEN
        while len(text) < wanted:
            order = list(paragraphs())
            rng.shuffle(order)
            whole = "\n\n".join(order)
            # From somewhere in a paragraph: short texts would all begin as paragraphs do.
            start = rng.randrange(0, 200)
            text += whole[start : start + int(wanted) - len(text) + 1]
        places = offsets(text)
        if len(places) >= tokens:
            return text[: places[tokens - 1][1]]
        text += " "
        tokens_missing = tokens - len(places)
        text += prose(int(tokens_missing * _CHARACTERS_PER_TOKEN) + 200)

"""Whether this pool's tokenizer and the engine's model can belong together.

They may be on two machines, each told its model by a person. If they are not of one model, every answer is nonsense,
and nobody is told; so what both know of themselves is compared at the handshake.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from engine_bridge.wire import Capabilities

_PADDING_SHARE, _PADDING_IDS = 0.05, 1024  # models round their vocabulary up, to please the hardware; by less than that

log = logging.getLogger("apiserver.fit")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The ids that a tokenizer can make, below `size`; below `ordinary_size` those that any text may become."""

    size: int
    ordinary_size: int
    eos_token_ids: tuple[int, ...]

    @classmethod
    def of(cls, size: int, added_ids: Collection[int], eos_token_ids: tuple[int, ...]) -> "Vocabulary":
        """Added tokens stand at the end as a rule, and are what only a text with their very words becomes."""
        ordinary_size = size
        while ordinary_size - 1 in added_ids:
            ordinary_size -= 1
        return cls(size, ordinary_size, eos_token_ids)


def misfit(vocabulary: Vocabulary, capabilities: Capabilities) -> str | None:
    """Why the engine could not take this tokenizer's ids; None if it can, or does not tell how many it has.

    Added tokens are left out: models exist whose tokenizer has one more than they (gemma-3's text models), and a
    request that needs it is refused by itself.
    """
    ids = capabilities.vocab_size
    if not ids or vocabulary.ordinary_size <= ids:
        return None
    return (
        f"the tokenizer here makes ids up to {vocabulary.ordinary_size - 1}, and the engine's model takes 0 to "
        f"{ids - 1}: they are of two models. Name the engine's model as MODEL, or its tokenizer with --tokenizer"
    )


def doubts(vocabulary: Vocabulary, capabilities: Capabilities, max_model_len: int | None) -> Iterator[str]:
    """What does not stand in the way, and seldom is as it should be."""
    ids, ends = capabilities.vocab_size, capabilities.eos_token_ids
    if ids and vocabulary.size > ids:
        yield (
            f"the tokenizer's special tokens go up to {vocabulary.size - 1}, and the engine's model takes 0 to "
            f"{ids - 1}: requests with the others are refused"
        )
    if ids > vocabulary.size * (1 + _PADDING_SHARE) + _PADDING_IDS:
        yield (
            f"the engine's model has {ids} ids and the tokenizer here makes {vocabulary.size}: are they of one model?"
        )
    if ends and vocabulary.eos_token_ids and not set(ends) & set(vocabulary.eos_token_ids):
        yield (
            f"the engine's model ends with the ids {_listed(ends)} and the tokenizer here names "
            f"{_listed(vocabulary.eos_token_ids)}: are they of one model?"
        )
    if max_model_len is not None and max_model_len > capabilities.max_model_len:
        yield f"--max-model-len is {max_model_len}, and the engine's {capabilities.max_model_len}, which counts"


class Judge:
    """One API server's. All of them find the same, and `speaks` says whether it is for this one to tell the log."""

    def __init__(self, vocabulary: Vocabulary, max_model_len: int | None, speaks: Callable[[], bool]) -> None:
        self._vocabulary = vocabulary
        self._max_model_len = max_model_len
        self._speaks = speaks
        self._said = ""

    def check(self, capabilities: Capabilities) -> str | None:
        """Why this engine cannot be taken, if so; of one that perhaps should not be, a word in the log."""
        reason = misfit(self._vocabulary, capabilities)
        if reason is None:
            self._say(logging.WARNING, "; ".join(doubts(self._vocabulary, capabilities, self._max_model_len)))
        return reason

    def not_taken(self, reason: str) -> None:
        """The pool served before, and waits for another engine."""
        self._say(logging.ERROR, f"not taking the engine core: {reason}")

    def _say(self, level: int, text: str) -> None:
        """Once: it is found again at every greeting."""
        is_new, self._said = text != self._said, text
        if text and is_new and self._speaks():
            log.log(level, "%s", text)


def _listed(ids: Collection[int]) -> str:
    return ", ".join(map(str, ids))

"""The simulated engine's scores: how likely each label is, by the prompt and the label and nothing else."""

import math
import zlib
from collections.abc import Sequence

_SHARES = 1000


def score_labels(
    prompt: bytes, labels: Sequence[int], *, next_id: int, logprob: float, vocab_size: int
) -> tuple[float, ...]:
    """`next_id` is what a generation would begin with, and has `logprob`; the others share what that leaves, unequally.

    So the labels' probabilities never add up to more than 1, and greedy generation takes the likeliest label.
    """
    left = (1 - math.exp(logprob)) / vocab_size

    def one(label: int) -> float:
        if label == next_id:
            return logprob
        share = 1 + zlib.crc32(label.to_bytes(4, "little"), zlib.crc32(prompt)) % _SHARES
        return math.log(left * share / _SHARES)

    return tuple(one(label) for label in labels)

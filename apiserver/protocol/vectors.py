"""Vectors from the engine, as little-endian float32 bytes, for dialects that look into them."""

import array
import math
import operator
from collections.abc import Generator, Iterable, Iterator
from typing import TypeAlias

from apiserver.card import Card
from apiserver.errors import Internal, InvalidRequest
from apiserver.events import Result
from apiserver.protocol.decoding import check_range
from apiserver.requests import EmbedJob

Vector: TypeAlias = "array.array[float]"


def check_dimensions(dimensions: int | None, card: Card) -> None:
    """Cutting the vectors of a model that was not trained for it makes poor ones, silently: refused."""
    if dimensions is None:
        return
    full = card.capabilities.dimensions
    check_range("dimensions", dimensions, 1, full or math.inf)
    if dimensions != full and not card.capabilities.matryoshka:
        raise InvalidRequest(
            f"This model's vectors have {full} dimensions and cannot be shortened.", param="dimensions"
        )


def finite(vector: bytes, param: str) -> Vector:
    """As floats. Raises Internal naming the input whose vector holds what is no number."""
    floats = array.array("f", vector)
    if not math.isfinite(sum(floats)):
        raise Internal(f"{param}: the engine gave a vector with values that are not numbers.")
    return floats


def likenesses(job: EmbedJob, result: Result, ones: int = 1) -> Iterator[float]:
    """How alike the job's first prompt and each of the others are, from -1 to 1; or the first `ones`, each with its own
    other. Lazy: thousands of pairs take a while."""
    vectors = [finite(result.vectors[index], prompt.param) for index, prompt in enumerate(job.prompts)]
    return _cosines(vectors[:ones], vectors[ones:])


def best_first(scores: Iterable[float]) -> Generator[bytes, None, list[tuple[float, int]]]:
    """Returns each score with its place, the best first and equal ones as they came; yields nothing between them, so
    that others have their turn."""
    ranked: list[tuple[float, int]] = []
    for score in scores:
        ranked.append((-score, len(ranked)))
        yield b""
    ranked.sort()
    return [(-score, index) for score, index in ranked]


def _cosines(queries: list[Vector], others: list[Vector]) -> Iterator[float]:
    lengths = [_length(query) for query in queries]
    for number, other in enumerate(others):
        which = number % len(queries)
        dot = sum(map(operator.mul, queries[which], other))
        yield dot / ((lengths[which] * _length(other)) or 1.0)


def _length(vector: Vector) -> float:
    return math.sqrt(sum(map(operator.mul, vector, vector)))

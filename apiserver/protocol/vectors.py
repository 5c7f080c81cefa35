"""Vectors from the engine, as little-endian float32 bytes, for dialects that look into them."""

import array
import math
import operator
from collections.abc import Iterator
from typing import TypeAlias

from apiserver.card import Card
from apiserver.errors import Internal, InvalidRequest
from apiserver.protocol.decoding import check_range

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


def cosines(queries: list[Vector], others: list[Vector]) -> Iterator[float]:
    """How alike each pair is, from -1 to 1; one query may stand for all. Lazy: thousands of pairs take a while."""
    lengths = [_length(query) for query in queries]
    for number, other in enumerate(others):
        which = number % len(queries)
        dot = sum(map(operator.mul, queries[which], other))
        yield dot / ((lengths[which] * _length(other)) or 1.0)


def _length(vector: Vector) -> float:
    return math.sqrt(sum(map(operator.mul, vector, vector)))

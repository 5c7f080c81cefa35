"""The simulated engine's vectors: of length 1, by the prompt's hash and nothing else."""

import array
import math
import random
from dataclasses import dataclass, field

_VECTORS = 256  # base vectors; rotated by the prompt's hash, so that different prompts differ


@dataclass(frozen=True, slots=True)
class Vectors:
    """All vectors of one size."""

    dimensions: int
    _bases: list[bytes] = field(init=False, default_factory=list[bytes])

    def __post_init__(self) -> None:
        self._bases.extend(_unit_vector(seed, self.dimensions) for seed in range(_VECTORS))

    def of(self, hashed: int, dimensions: int | None) -> bytes:
        """Cut to `dimensions` and normalised again, if they are other than its own."""
        base = self._bases[hashed % _VECTORS]
        cut = 4 * ((hashed >> 8) % self.dimensions)
        vector = base[cut:] + base[:cut]
        if dimensions is None or dimensions == self.dimensions:
            return vector
        return _normalised(array.array("f", vector[: 4 * dimensions]).tolist())


def no_number(dimensions: int) -> bytes:
    """A vector that a faulty engine might give."""
    return array.array("f", [math.nan] * dimensions).tobytes()


def _unit_vector(seed: int, dimensions: int) -> bytes:
    source = random.Random(seed)
    return _normalised([source.gauss(0, 1) for _ in range(dimensions)])


def _normalised(values: list[float]) -> bytes:
    norm = math.sqrt(sum(value * value for value in values)) or 1.0
    return array.array("f", [value / norm for value in values]).tobytes()

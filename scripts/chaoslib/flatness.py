"""Whether memory grows: the rule, and its figures."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

ALLOWED_SHARE, ALLOWED_BYTES = 0.05, 8 << 20


def flatness(series: Sequence[tuple[float, Mapping[str, int]]], role: str) -> dict[str, Any]:
    """The medians of the second quarter of a run and of its last; flat if the gain is less than 5 % and 8 MiB.

    The first quarter is the warm-up. Medians, since processes come and go. Fewer than 20 readings say nothing, and
    count as flat.
    """
    values = [reading[role] for _, reading in series]
    if len(values) < 20:
        return {"is_flat": True, "readings": len(values)}
    quarter = len(values) // 4
    early, late = median(values[quarter : 2 * quarter]), median(values[-quarter:])
    is_flat = late - early <= ALLOWED_SHARE * early + ALLOWED_BYTES
    return {"is_flat": is_flat, "early": early, "late": late, "most": max(values), "readings": len(values)}

"""Whether memory grows: the rule, and its figures."""

from collections.abc import Sequence
from statistics import median
from typing import Any

ALLOWED_SHARE, ALLOWED_BYTES = 0.05, 8 << 20
RULE = (
    f"flat: the last quarter's median is at most {ALLOWED_SHARE:.0%} and {ALLOWED_BYTES >> 20} MiB above the second's"
)
FEWEST_READINGS = 20


def flatness(values: Sequence[float]) -> dict[str, Any]:
    """Bytes, read again and again through a run: the medians of its second quarter and of its last.

    The first quarter is the warm-up: what was allocated until then is what serving takes. Medians, since processes
    come and go. `is_flat` is None where there are too few readings to say.
    """
    if len(values) < FEWEST_READINGS:
        return {"is_flat": None, "readings": len(values)}
    quarter = len(values) // 4
    early, late = median(values[quarter : 2 * quarter]), median(values[-quarter:])
    is_flat = late <= early * (1 + ALLOWED_SHARE) + ALLOWED_BYTES
    return {"is_flat": is_flat, "early": early, "late": late, "most": max(values), "readings": len(values)}


def verdict(figures: dict[str, Any]) -> str:
    """In a word, for a table."""
    return {True: "yes", False: "NO", None: "-"}[figures["is_flat"]]

"""Numbers out of samples: percentiles, summaries, and the median over repeated runs."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

PERCENTILES = (50, 90, 99)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of a sorted, non-empty sequence lies; linear between neighbours, as numpy's."""
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Count, mean, p50, p90, p99 and maximum; of nothing, only the count, since a made-up 0 looks like a result."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "mean": math.fsum(ordered) / len(ordered),
        **{f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES},
        "max": ordered[-1],
    }


def medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One tree of numbers out of several alike: each leaf the median of the runs that have it.

    Leaves that are no numbers are left out: there is no median of a text.
    """
    keys = dict.fromkeys(key for run in runs for key in run)  # an ordered set: the first run's order
    tree: dict[str, Any] = {}
    for key in keys:
        values = [run[key] for run in runs if key in run]
        branches = [value for value in values if isinstance(value, Mapping)]
        numbers = [value for value in values if isinstance(value, int | float)]
        if branches:
            tree[key] = medians(branches)
        elif numbers:
            tree[key] = statistics.median(numbers)
    return tree

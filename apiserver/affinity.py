"""Which CPUs the API servers and the engine core run on: `--cpu-affinity`."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_MOST_CPUS = 1 << 16


@dataclass(frozen=True, slots=True)
class Affinity:
    """CPU numbers. Each API server has one of `api` to itself as long as there are enough; the engine has `engine`."""

    api: tuple[int, ...]
    engine: tuple[int, ...]

    def of_slot(self, slot: int) -> int:
        return self.api[slot % len(self.api)]


def read(text: str, api_server_count: int) -> Affinity:
    """`API` or `API:ENGINE`, each like `0-3,8`; or `auto`. What is not said goes to the engine. Raises ValueError."""
    allowed = sorted(os.sched_getaffinity(0))
    if text == "auto":
        # The last CPUs: the first ones have most of a machine's interrupts, and are where SGLang puts its schedulers.
        count = max(1, min(api_server_count, len(allowed) // 2))
        return Affinity(tuple(allowed[-count:]), tuple(allowed[:-count] or allowed))  # one CPU is everybody's
    api_text, _, engine_text = text.partition(":")
    api = _cpus(api_text)
    engine = _cpus(engine_text) if engine_text else tuple(cpu for cpu in allowed if cpu not in api)
    _check(api, engine, allowed)
    return Affinity(api, engine)


def _check(api: Sequence[int], engine: Sequence[int], allowed: Sequence[int]) -> None:
    if missing := sorted({*api, *engine} - set(allowed)):
        raise ValueError(f"this process may not use CPU {_text(missing)} (only {_text(allowed)})")
    if not engine:
        raise ValueError("no CPU is left for the engine")
    if shared := sorted(set(api) & set(engine)):
        raise ValueError(f"CPU {_text(shared)} cannot be the API servers' and the engine's")


def _cpus(text: str) -> tuple[int, ...]:
    """`0-3,8` as numbers, each once."""
    found: dict[int, None] = {}
    for part in text.split(","):
        first, dash, last = part.partition("-")
        try:
            numbers = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise ValueError(f"'{part}' is not a CPU number or a range of them") from None
        if numbers.stop > _MOST_CPUS:
            raise ValueError(f"'{part}' is more than any machine has")
        if not numbers:
            raise ValueError(f"'{part}' is an empty range")
        found.update(dict.fromkeys(numbers))
    return tuple(found)


def _text(cpus: Iterable[int]) -> str:
    return ", ".join(map(str, cpus))

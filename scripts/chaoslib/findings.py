"""All that was seen in a run: each request's outcome, each fault and how long it was felt, and what must not be."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

_MOST_FINDINGS = 200
_FELT_SECONDS = 2.5


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to a pool, and when."""

    site: str
    kind: str
    at: float


@dataclass(slots=True)
class Findings:
    """Of one run, all sites."""

    began: float = field(default_factory=monotonic)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """By dialect and outcome."""
    faults: list[Fault] = field(default_factory=list[Fault])
    successes: dict[str, list[tuple[float, float]]] = field(default_factory=dict[str, list[tuple[float, float]]])
    """Of each site, when generating requests that succeeded began and ended."""
    strengths: dict[str, list[tuple[float, bool]]] = field(default_factory=dict[str, list[tuple[float, bool]]])
    """Of each site, when it was looked at, and whether all of it served."""
    memory: dict[str, list[tuple[float, dict[str, int]]]] = field(
        default_factory=dict[str, list[tuple[float, dict[str, int]]]]
    )
    findings: list[str] = field(default_factory=list[str])
    slowest: float = 0.0
    story: list[str] = field(default_factory=list[str])

    def found(self, site: str, what: str) -> None:
        """Something that must not be."""
        if len(self.findings) < _MOST_FINDINGS:
            self.findings.append(f"{monotonic() - self.began:.1f} s, {site}: {what}")
            print(f"\nFOUND at {self.findings[-1]}", file=sys.stderr, flush=True)

    def fault(self, site: str, kind: str) -> None:
        self.faults.append(Fault(site, kind, monotonic()))
        self.story.append(f"{monotonic() - self.began:8.2f} {site}: {kind}\n")

    def keep_story(self, directory: Path) -> None:
        """What was done, with the seconds since the run began."""
        (directory / "faults.log").write_text("".join(self.story), encoding="utf-8")

    def outages(self) -> dict[str, dict[str, Any]]:
        """Of each site and kind of fault: how many, and the median and the longest time until a request that began
        after it succeeded, and until the whole pool served again. Those that were not over at the end do not count."""
        by_kind: dict[str, list[Fault]] = {}
        for fault in self.faults:
            by_kind.setdefault(f"{fault.site}: {fault.kind}", []).append(fault)
        return {
            kind: {
                "count": len(faults),
                "to_success": _summary([self._success_after(fault) for fault in faults]),
                "to_full_strength": _summary([self._whole_again(fault) for fault in faults]),
            }
            for kind, faults in sorted(by_kind.items())
        }

    def _success_after(self, fault: Fault) -> float | None:
        """Seconds."""
        ends = [end for began, end in self.successes.get(fault.site, ()) if began >= fault.at]
        return min(ends) - fault.at if ends else None

    def _whole_again(self, fault: Fault) -> float | None:
        """Seconds until it was first seen whole after it was not; none, if nothing was seen within two of them."""
        was_less = False
        for at, is_whole in self.strengths.get(fault.site, ()):
            if at <= fault.at:
                continue
            was_less = was_less or not is_whole
            if is_whole and was_less:
                return at - fault.at
            if not was_less and at > fault.at + _FELT_SECONDS:
                return 0.0
        return None


def _summary(seconds: list[float | None]) -> dict[str, float | None]:
    known = [each for each in seconds if each is not None]
    return {"median": median(known) if known else None, "longest": max(known, default=None)}

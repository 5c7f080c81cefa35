"""All that was seen in a run: each request's outcome, each fault and how long it was felt, and what must not be."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

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

    def longest(self) -> dict[str, dict[str, float | int | None]]:
        """Of each kind of fault: how many, and the longest until a request that began after it succeeded, and until
        the whole pool served again. None if that was not seen."""
        rows: dict[str, dict[str, float | int | None]] = {}
        for fault in self.faults:
            row = rows.setdefault(fault.kind, {"count": 0, "to_success": 0.0, "to_full_strength": 0.0})
            row["count"] = (row["count"] or 0) + 1
            ends = [end for began, end in self.successes.get(fault.site, ()) if began >= fault.at]
            _keep_longest(row, "to_success", min(ends, default=None), fault.at)
            _keep_longest(row, "to_full_strength", self._whole_again(fault), fault.at)
        return rows

    def _whole_again(self, fault: Fault) -> float | None:
        """When it was first seen whole after it was not; at once, if nothing was seen within two seconds."""
        was_less = False
        for at, is_whole in self.strengths.get(fault.site, ()):
            if at <= fault.at:
                continue
            was_less = was_less or not is_whole
            if is_whole and was_less:
                return at
            if not was_less and at > fault.at + _FELT_SECONDS:
                return fault.at
        return None


def _keep_longest(row: dict[str, float | int | None], name: str, end: float | None, began: float) -> None:
    before = row[name]
    row[name] = None if end is None or before is None else max(before, end - began)

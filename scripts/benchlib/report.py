"""What a person sees and what a file keeps: the progress line, Markdown tables, and where the numbers were made."""

import asyncio
import contextlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self, TextIO

import msgspec

_BAR_WIDTH = 24
_TERMINAL_INTERVAL_SECONDS = 0.2
_LOG_INTERVAL_SECONDS = 5.0


class Progress:
    """A line that grows on a terminal; elsewhere, a line now and then, and one at the end.

    Either `total` (things to do) or `duration_seconds` says how far there is to go. A passing one is only shown while
    it lasts, and leaves no line behind. A timer of the running loop draws it; where there is none, each advance may.
    """

    def __init__(
        self,
        title: str,
        *,
        total: int | None,
        duration_seconds: float | None = None,
        is_passing: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self._title = title
        self._total = total
        self._duration_seconds = duration_seconds
        self._stream = sys.stderr if stream is None else stream
        self._is_passing = is_passing
        self._is_terminal = self._stream.isatty()
        self._interval = _TERMINAL_INTERVAL_SECONDS if self._is_terminal else _LOG_INTERVAL_SECONDS
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._began = self._drawn = perf_counter()
        self.done = 0
        self.failed = 0

    def __enter__(self) -> Self:
        self._began = self._drawn = perf_counter()
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
        if self._is_terminal:
            self._draw()
        if self._loop is not None:
            self._timer = self._loop.call_later(self._interval, self._tick, self._loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_passing:
            self._print(end="\n")
        elif self._is_terminal:
            self._stream.write("\r\x1b[K")

    def advance(self, *, is_failed: bool = False) -> None:
        """One more is done. Cheap: it draws nothing where a timer does."""
        self.done += 1
        self.failed += is_failed
        # A loop that is kept busy calls no timer.
        if perf_counter() - self._drawn >= self._interval:
            self._draw()

    def line(self, elapsed: float) -> str:
        """The text after so many seconds."""
        share = self._share(elapsed)
        filled = round(share * _BAR_WIDTH)
        of_total = "" if self._total is None else f"/{self._total}"
        failed = f", {self.failed} failed" if self.failed else ""
        left = f", {elapsed / share - elapsed:.0f} s left" if 0 < share < 1 else ""
        bar = "#" * filled + "-" * (_BAR_WIDTH - filled)
        return f"{self._title} [{bar}] {share:4.0%} {self.done}{of_total}{failed}, {elapsed:.0f} s{left}"

    def _share(self, elapsed: float) -> float:
        if self._total is not None:
            return min(1.0, self.done / self._total) if self._total else 1.0
        return min(1.0, elapsed / self._duration_seconds) if self._duration_seconds else 1.0

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._draw()
        self._timer = loop.call_later(self._interval, self._tick, loop)

    def _draw(self) -> None:
        self._drawn = perf_counter()
        self._print(end="" if self._is_terminal else "\n")

    def _print(self, *, end: str) -> None:
        line = self.line(perf_counter() - self._began)
        # \x1b[K clears what a longer line left behind.
        self._stream.write(f"\r{line}\x1b[K{end}" if self._is_terminal else f"{line}{end}")
        self._stream.flush()


def number(value: float | None) -> str:
    """Three or so figures, without an exponent; a dash for what was not measured."""
    if value is None:
        return "-"
    size = abs(value)
    digits = next(
        (digits for limit, digits in ((0.1, 4), (1.0, 3), (10.0, 2), (100.0, 1)) if 0 < size < limit),
        0,
    )
    return f"{value:.{digits}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned in plain text too: the first to the left, numbers to the right."""
    widths = [max(len(line[column]) for line in (header, *rows)) for column in range(len(header))]
    is_number = [
        column > 0 and all(row[column][:1].isdigit() or row[column] == "-" for row in rows)
        for column in range(len(header))
    ]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, is_number, strict=True)
        ]
        return f"| {' | '.join(padded)} |"

    rule = "|".join("-" * (width + 1) + (":" if right else "-") for width, right in zip(widths, is_number, strict=True))
    return "\n".join([line(header), f"|{rule}|", *(line(row) for row in rows)])


def provenance() -> dict[str, Any]:
    """The date, the machine and the commit that numbers belong to. No host name, no user."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": {
            "cpu": _cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
    }


def provenance_line(document: Mapping[str, Any]) -> str:
    """The same in one line, to stand below a table or a picture."""
    machine = document["machine"]
    commit = document["commit"]
    if commit is not None:
        commit = commit[:10] + ("-dirty" if commit.endswith("-dirty") else "")
    return (
        f"{machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}, Python {machine['python']}; "
        f"commit {commit or 'unknown'}; {document['date'][:10]}"
    )


def write_json(path: Path, document: object) -> None:
    """Write it readably, whole or not at all."""
    text = msgspec.json.format(msgspec.json.encode(document), indent=2)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_bytes(text + b"\n")
    unfinished.replace(path)


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str | None:
    """This checkout's commit, with a mark if files differ from it; None outside a checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        status = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("-dirty" if status.stdout.strip() else "")

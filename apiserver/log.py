"""Logging: one format for every process of the pool, one line per start, stop, death and 5xx. Never prompts or keys."""

import logging
from dataclasses import dataclass

from engine_bridge.log import handler


def set_up(level: str, role: str) -> None:
    """Send this process's log to stderr, each line with who speaks. Call again after the fork with the new role."""
    root = logging.getLogger()
    to_stderr = handler(role)
    to_stderr.addFilter(Seldom())
    root.handlers[:] = [to_stderr]
    root.setLevel(level.upper())
    # Ours says what matters; uvicorn's own lines ("Invalid HTTP request received.") would be one per stranger.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)


class Seldom(logging.Filter):
    """Of the records that name the same `seldom` (by `extra`), one a second: what refuses a thousand requests a second
    must not write a thousand lines. The next one says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        name: str | None = getattr(record, "seldom", None)
        if name is None:
            return True
        kind = self._kinds.setdefault(name, _Kind(record.created - 1))
        if record.created - kind.told_at < 1:
            kind.left_out += 1
            return False
        if kind.left_out:
            record.msg, record.args = f"{record.getMessage()} (and {kind.left_out} more since such a line)", ()
        kind.told_at, kind.left_out = record.created, 0
        return True


@dataclass(slots=True)
class _Kind:
    told_at: float
    left_out: int = 0

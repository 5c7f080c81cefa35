"""The engine core of another machine, as the supervisor has it: nobody's child here, so nothing to start or to end.

The API servers hold the link to it and keep its row (`remote_engine.py`).
"""

from typing import Protocol

from apiserver.exit_code import ExitCode


class ReadyStatus(Protocol):
    """What the supervisor reads of the engine's row."""

    @property
    def is_ready(self) -> bool: ...


class EngineElsewhere:
    """In the place of an EngineKeeper."""

    pid: int | None = None
    has_served = True

    def __init__(self, row: ReadyStatus) -> None:
        self._row = row

    @property
    def is_ready(self) -> bool:
        return self._row.is_ready

    def start(self, now: float) -> None:
        pass

    def tend(self, now: float, seconds: float) -> None:
        pass

    def watch(self, seconds: float) -> None:
        pass

    def on_exit(self, code: int, now: float) -> ExitCode | None:
        raise AssertionError("no process of ours")

    def bury(self) -> None:
        pass

    def ask_to_stop(self) -> None:
        pass

    def kill(self) -> None:
        pass

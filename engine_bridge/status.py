"""One row of shared memory: what the engine core says of itself, readable without asking it.

The API server's parent makes the memory before anything starts and the core, which is exec'd, inherits the descriptor;
so health and queue lengths are true on every API server, also when the core can no longer answer. Times are
CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.
"""

import mmap
import os
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Self


class EngineState(IntEnum):
    LOADING = 0
    READY = 1
    DEAD = 2
    STOPPING = 3
    UNREACHABLE = 4  # it is on another machine, and no API server of this pool hears of it


class Field(IntEnum):
    """The row's int64 cells. Append only: a core of another version may be mapping it."""

    STATE = 0
    PID = 1
    EPOCH = 2
    HEARTBEAT = 3
    RUNNING = 4
    WAITING = 5
    STARTED = 6
    REQUESTS = 7
    OUTPUT_TOKENS = 8
    JUNK = 9  # messages that were not of our kind
    READY_SINCE = 10  # of this epoch; 0 = it has never been ready
    LAST_OUTPUT = 11  # when the engine last gave anything, or last had nothing to do
    TOKENS_USED = 12  # of the key-value cache; these five stay 0 where the engine does not tell
    TOKEN_CAPACITY = 13
    TOKENS_PER_SECOND = 14  # generated, by the engine's own count
    PROMPT_TOKENS = 15
    CACHED_TOKENS = 16  # of those prompt tokens: found in the prefix cache


@dataclass(frozen=True, slots=True)
class Figures:
    """What an engine says of itself, for people and dashboards; 0 is also "does not tell"."""

    stage: str = ""
    """What it is doing while it loads."""
    tokens_used: int = 0
    """Of the key-value cache; of `token_capacity`."""
    token_capacity: int = 0
    tokens_per_second: int = 0
    """Generated, by the engine's own count."""
    prompt_tokens: int = 0
    """Of all requests since it was started; `cached_tokens` of them were found in the prefix cache."""
    cached_tokens: int = 0


ROW_BYTES = mmap.PAGESIZE
_STAGE_OFFSET = 2048
_STAGE_BYTES = 256


class EngineRow:
    """Named access to the row. One writer per cell: the core; its parent before it starts it, and from the moment when
    it holds the core for dead."""

    __slots__ = ("_cells", "_memory")

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._cells = memory.cast("q")

    @classmethod
    def attach(cls, descriptor: int) -> Self:
        """Map an inherited descriptor; it may be closed afterwards."""
        return cls(memoryview(mmap.mmap(descriptor, ROW_BYTES)))

    def get(self, field: Field) -> int:
        return self._cells[field]

    def set(self, field: Field, value: int) -> None:
        self._cells[field] = value

    def add(self, field: Field, value: int) -> None:
        self._cells[field] += value

    @property
    def state(self) -> EngineState:
        return EngineState(self._cells[Field.STATE])

    @state.setter
    def state(self, state: EngineState) -> None:
        self._cells[Field.STATE] = state

    @property
    def is_ready(self) -> bool:
        return self._cells[Field.STATE] == EngineState.READY

    @property
    def has_been_ready(self) -> bool:
        """Whether this epoch has ever served; it tells a death from a failure to start."""
        return self._cells[Field.READY_SINCE] != 0

    @property
    def heartbeat(self) -> int:
        return self._cells[Field.HEARTBEAT]

    @property
    def last_output(self) -> int:
        return self._cells[Field.LAST_OUTPUT]

    def begin(self, epoch: int) -> None:
        """A new incarnation is about to be started; what was counted over all of them stays."""
        for field in (Field.PID, Field.READY_SINCE, Field.RUNNING, Field.WAITING, Field.TOKENS_USED):
            self._cells[field] = 0
        self._cells[Field.TOKENS_PER_SECOND] = 0
        self._cells[Field.HEARTBEAT] = self._cells[Field.LAST_OUTPUT] = time.monotonic_ns()
        self.stage = ""
        self._cells[Field.STATE] = EngineState.LOADING
        self._cells[Field.EPOCH] = epoch

    def note_output(self) -> None:
        """The engine has given something, or has nothing to do."""
        self._cells[Field.LAST_OUTPUT] = time.monotonic_ns()

    def mark_ready(self) -> None:
        self._cells[Field.READY_SINCE] = time.monotonic_ns()
        self._cells[Field.STATE] = EngineState.READY

    def mark_dead(self) -> None:
        """Its parent has seen it die."""
        self._cells[Field.STATE] = EngineState.DEAD
        self._cells[Field.RUNNING] = self._cells[Field.WAITING] = 0
        self._cells[Field.TOKENS_PER_SECOND] = 0

    def beat(self, running: int, waiting: int) -> None:
        """Say "my loop turns", and how much work there is."""
        self._cells[Field.HEARTBEAT] = time.monotonic_ns()
        self._cells[Field.RUNNING] = running
        self._cells[Field.WAITING] = waiting

    def take_figures(self, figures: Figures) -> None:
        """Write down what the engine says of itself."""
        cells = self._cells
        cells[Field.TOKENS_USED] = figures.tokens_used
        cells[Field.TOKEN_CAPACITY] = figures.token_capacity
        cells[Field.TOKENS_PER_SECOND] = figures.tokens_per_second
        cells[Field.PROMPT_TOKENS] = figures.prompt_tokens
        cells[Field.CACHED_TOKENS] = figures.cached_tokens
        if figures.stage != self.stage:
            self.stage = figures.stage

    @property
    def stage(self) -> str:
        """What the engine is doing while it loads, for people; empty if it does not say."""
        return bytes(self._memory[_STAGE_OFFSET : _STAGE_OFFSET + _STAGE_BYTES]).split(b"\0")[0].decode(errors="ignore")

    @stage.setter
    def stage(self, text: str) -> None:
        encoded = text.encode(errors="replace")[: _STAGE_BYTES - 1]
        self._memory[_STAGE_OFFSET : _STAGE_OFFSET + _STAGE_BYTES] = encoded.ljust(_STAGE_BYTES, b"\0")

    @property
    def seconds_since_beat(self) -> float:
        return (time.monotonic_ns() - self._cells[Field.HEARTBEAT]) / 1e9


def make_descriptor() -> int:
    """A new anonymous row, zeroed (LOADING). Inheritable only where a child is told so."""
    descriptor = os.memfd_create("engine-row", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, ROW_BYTES)
    return descriptor

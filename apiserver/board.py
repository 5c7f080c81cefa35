"""The page of shared memory that every process of the pool sees: one slot an API server.

Made (as an anonymous memory file) before the first fork and mapped by all, so any API server can answer for the pool.
Each slot has one writer, its worker; before it forks one, and after it has reaped it, that is the supervisor. Cells are
aligned 8 bytes, so no reader sees half a value. The second part of a slot holds that worker's metrics as float64: they
belong to the slot, not to the process, so a replaced worker counts on where the dead one stopped and nothing is left
behind.
"""

import mmap
import os
import time
from enum import IntEnum


class WorkerState(IntEnum):
    EMPTY = 0
    STARTING = 1
    READY = 2
    DRAINING = 3
    DEAD = 4


class Cell(IntEnum):
    """The int64 cells of a slot."""

    PID = 0
    GENERATION = 1
    STATE = 2
    STARTED = 3  # CLOCK_MONOTONIC ns, as all times here
    HEARTBEAT = 4  # written by the worker's loop, so it proves that the loop turns
    CONNECTIONS = 5
    IN_FLIGHT = 6
    LOOP_LAG = 7  # ns by which the last heartbeat was late
    REQUESTS = 8
    ENGINE_REQUESTS = 9  # requests of this worker that the engine has not ended
    ENGINE_EPOCH = 10  # of the engine core that has welcomed this worker; 0 = none yet
    BACKGROUND = 11  # tasks that go on without a client, such as responses in the background
    # Counted only where the pool has limits (pipeline/admission.py); all are requests of the engine.
    ADMITTED = 20  # that have not ended, from before their prompts are encoded
    QUEUED = 21  # of them, those that the engine has not begun to answer
    QUEUED_TOKENS = 22  # the prompt tokens of those that were submitted
    ENDED = 23  # since the start; never falls


class PoolCell(IntEnum):
    """The int64 cells of the pool's own row."""

    API_SERVER_COUNT = 0
    DRAINING = 1
    STARTED = 2
    WORKER_DEATHS = 3
    SLOTS_USED = 4  # no slot from here on was ever occupied
    HAS_SERVED = 5  # an engine core has taken an API server of this pool, once


class KeyCell(IntEnum):
    """The int64 cells of one API key in a slot."""

    IN_FLIGHT = 0  # HTTP requests being answered
    REQUESTS = 1  # since the start; never falls
    REFUSED = 2  # of them, those that were over a limit of the key
    MINUTE = 3  # the number of the clock's minute, shifted left, and how many were taken in it


def key_cell(number: int, cell: KeyCell) -> int:
    """Where in `Slot.keys` this cell of the key with this number is."""
    return len(KeyCell) * number + cell


_COUNT, _USED = int(PoolCell.API_SERVER_COUNT), int(PoolCell.SLOTS_USED)

BEAT_LIMIT_SECONDS = 1.5
"""A loop that has not turned for this long (it beats ten times a second) is not to be counted on."""

MAX_SLOTS = 256
_POOL_BYTES = mmap.PAGESIZE
_CELLS_BYTES = 256
METRIC_CELLS = 2016
MAX_KEYS = 128
"""API keys by name: as many as a slot has room to count."""
_METRIC_BYTES = 8 * METRIC_CELLS
_SLOT_BYTES = _CELLS_BYTES + _METRIC_BYTES + 8 * len(KeyCell) * MAX_KEYS


class Slot:
    """One worker's cells, metrics and counts by API key (where, says `key_cell`)."""

    __slots__ = ("cells", "keys", "metrics", "number")

    def __init__(self, number: int, memory: memoryview) -> None:
        self.number = number
        self.cells = memory[:_CELLS_BYTES].cast("q")
        self.metrics = memory[_CELLS_BYTES : _CELLS_BYTES + _METRIC_BYTES].cast("d")
        self.keys = memory[_CELLS_BYTES + _METRIC_BYTES :].cast("q")

    def get(self, cell: Cell) -> int:
        return self.cells[cell]

    def set(self, cell: Cell, value: int) -> None:
        self.cells[cell] = value

    @property
    def state(self) -> WorkerState:
        return WorkerState(self.cells[Cell.STATE])

    @state.setter
    def state(self, state: WorkerState) -> None:
        self.cells[Cell.STATE] = state

    @property
    def is_serving(self) -> bool:
        return self.cells[Cell.STATE] == WorkerState.READY

    @property
    def seconds_since_beat(self) -> float:
        return (time.monotonic_ns() - self.cells[Cell.HEARTBEAT]) / 1e9

    @property
    def seconds_since_start(self) -> float:
        return (time.monotonic_ns() - self.cells[Cell.STARTED]) / 1e9

    @property
    def is_responsive(self) -> bool:
        """Whether it serves and its loop turns; the others neither balance with it nor wait for it."""
        return self.is_serving and self.seconds_since_beat < BEAT_LIMIT_SECONDS

    @property
    def is_idle(self) -> bool:
        return self.cells[Cell.IN_FLIGHT] == 0

    def occupy(self, generation: int) -> None:
        """A new worker will live here: what described the last one goes, the metrics stay.

        To be called before the fork: the child may run, and say that it is ready, before its parent runs again.
        """
        self._clear()
        now = time.monotonic_ns()
        self.cells[Cell.GENERATION] = generation
        self.cells[Cell.STARTED] = now
        self.cells[Cell.HEARTBEAT] = now
        self.cells[Cell.STATE] = WorkerState.STARTING

    def release(self) -> None:
        """Its worker was retired and nobody follows here; the metrics still count."""
        self.vacate()
        self.cells[Cell.STATE] = WorkerState.EMPTY

    def vacate(self) -> None:
        """Its worker is dead; whoever balances by connections must not count them."""
        self.cells[Cell.STATE] = WorkerState.DEAD
        self._clear()

    def _clear(self) -> None:
        for cell in (
            Cell.PID,
            Cell.CONNECTIONS,
            Cell.IN_FLIGHT,
            Cell.LOOP_LAG,
            Cell.ENGINE_REQUESTS,
            Cell.ENGINE_EPOCH,
            Cell.BACKGROUND,
            Cell.ADMITTED,
            Cell.QUEUED,
            Cell.QUEUED_TOKENS,
        ):
            self.cells[cell] = 0
        for number in range(MAX_KEYS):
            self.keys[key_cell(number, KeyCell.IN_FLIGHT)] = 0


class Board:
    """All slots, and the pool's own row."""

    def __init__(self, count: int) -> None:
        """Make the memory for a pool of `count` API servers (room for MAX_SLOTS; untouched pages cost nothing)."""
        if not 1 <= count <= MAX_SLOTS:
            raise ValueError(f"api-server-count must be 1 to {MAX_SLOTS}, not {count}")
        descriptor = os.memfd_create("apiserver-board", os.MFD_CLOEXEC)
        size = _POOL_BYTES + MAX_SLOTS * _SLOT_BYTES
        os.ftruncate(descriptor, size)
        memory = memoryview(mmap.mmap(descriptor, size))
        os.close(descriptor)
        self._pool = memory[:_POOL_BYTES].cast("q")
        self._slots = [
            Slot(number, memory[_POOL_BYTES + number * _SLOT_BYTES : _POOL_BYTES + (number + 1) * _SLOT_BYTES])
            for number in range(MAX_SLOTS)
        ]
        self._used: list[Slot] = []
        self._pool[PoolCell.API_SERVER_COUNT] = count
        self._pool[PoolCell.STARTED] = time.monotonic_ns()

    @property
    def count(self) -> int:
        return self._pool[PoolCell.API_SERVER_COUNT]

    @property
    def slots(self) -> list[Slot]:
        """The slots that have, or should have, a worker now: as many as the count, and their successors."""
        return [slot for slot in self.used_slots if slot.cells[Cell.STATE] != WorkerState.EMPTY]

    @property
    def used_slots(self) -> list[Slot]:
        """Every slot that ever had a worker: their metrics are part of the pool's sum."""
        return self._slots[: max(self.count, self._pool[PoolCell.SLOTS_USED])]

    def set_count(self, count: int) -> None:
        """How many API servers there should be from now on."""
        self._pool[PoolCell.SLOTS_USED] = max(self._pool[PoolCell.SLOTS_USED], self.count)
        self._pool[PoolCell.API_SERVER_COUNT] = count

    def free_slot(self) -> int | None:
        """The lowest slot without a worker, which counts as used from now on; None if all have one."""
        free = (slot.number for slot in self._slots if slot.cells[Cell.STATE] == WorkerState.EMPTY)
        number = next(free, None)
        if number is not None:
            self._pool[PoolCell.SLOTS_USED] = max(self._pool[PoolCell.SLOTS_USED], number + 1)
        return number

    def slot(self, number: int) -> Slot:
        return self._slots[number]

    @property
    def is_draining(self) -> bool:
        return bool(self._pool[PoolCell.DRAINING])

    def set_draining(self) -> None:
        self._pool[PoolCell.DRAINING] = 1

    @property
    def has_served(self) -> bool:
        """Whether an engine core has ever taken an API server of this pool: before that, the pool has not started."""
        return bool(self._pool[PoolCell.HAS_SERVED])

    def note_served(self) -> None:
        self._pool[PoolCell.HAS_SERVED] = 1

    def count_death(self) -> None:
        self._pool[PoolCell.WORKER_DEATHS] += 1

    def get(self, cell: PoolCell) -> int:
        return self._pool[cell]

    def total(self, cell: int) -> int:
        """A Cell's sum over all slots. Asked for each request: give a plain int, an enum's member is slower."""
        total = 0
        for slot in self._ever_used():
            total += slot.cells[cell]
        return total

    def key_total(self, at: int) -> int:
        """The same of one cell of one API key: see `key_cell`."""
        total = 0
        for slot in self._ever_used():
            total += slot.keys[at]
        return total

    def key_cells(self, at: int) -> list[int]:
        """One cell of one API key, in every slot."""
        return [slot.keys[at] for slot in self._ever_used()]

    def _ever_used(self) -> list[Slot]:
        """`used_slots`, made anew only when there are more of them."""
        if len(self._used) != max(self._pool[_COUNT], self._pool[_USED]):
            self._used = self.used_slots
        return self._used

    def less_loaded(self, slot: Slot) -> list[Slot]:
        """The responsive workers that have fewer open connections than this one."""
        own = slot.cells[Cell.CONNECTIONS]
        return [other for other in self.slots if other.cells[Cell.CONNECTIONS] < own and other.is_responsive]

    def is_connected(self, epoch: int) -> bool:
        """Whether every responsive worker has been welcomed by the engine core of this epoch."""
        return all(slot.get(Cell.ENGINE_EPOCH) == epoch for slot in self.slots if slot.is_responsive)

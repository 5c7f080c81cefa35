"""The engine core of another machine, as one API server sees it; and the pool's row of it, kept by one of them.

With an engine of its own, a pool's row is shared memory that the core writes. Here each API server hears the core's
heartbeats over its own connection, and one of them writes the row that all of them read: the first that is connected,
or while nobody is the first that lives. There is no election; all of them look at the board and find the same one, and
where for a moment two believe it, both write what the same core said.
"""

from apiserver.board import BEAT_LIMIT_SECONDS, Board, Cell, Slot, WorkerState
from engine_bridge import figures
from engine_bridge.client import EngineClient
from engine_bridge.link import Link
from engine_bridge.status import EngineRow

_ALIVE = (WorkerState.STARTING, WorkerState.READY, WorkerState.DRAINING)


class RemoteEngine:
    """Call `follow` several times a second, after the slot's own heartbeat."""

    def __init__(self, client: EngineClient, link: Link, row: EngineRow, board: Board, slot: Slot) -> None:
        self._client = client
        self._link = link
        self._row = row
        self._board = board
        self._slot = slot

    def follow(self) -> None:
        self._link.tick()
        if self._writer() != self._slot.number:
            return
        heartbeat = self._client.heartbeat
        if heartbeat is None:
            figures.write_unreachable(self._row)
        else:
            figures.write(self._row, heartbeat, self._client.heard_at)

    def _writer(self) -> int:
        alive = [
            slot for slot in self._board.slots if slot.state in _ALIVE and slot.seconds_since_beat < BEAT_LIMIT_SECONDS
        ]
        connected = [slot for slot in alive if slot.get(Cell.ENGINE_EPOCH)]
        return (connected or alive or [self._slot])[0].number

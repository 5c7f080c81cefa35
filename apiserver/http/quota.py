"""What one API key may ask of the pool: so many requests at a time, so many a minute; and the counts of each.

As with the pool's own limits, each API server counts in its own slot, adds first and then looks at the sum of all. The
minutes are those of the machine's monotonic clock, so no window slides: within a limit of 100, 200 can come in the two
seconds around a minute's end.
"""

import time
from typing import NoReturn

from apiserver.api_keys import ApiKey
from apiserver.board import Board, KeyCell, Slot
from apiserver.config import AdmissionSettings
from apiserver.errors import TooManyRequests
from apiserver.metrics import Metrics

_MINUTE_SECONDS = 60
_COUNT_BITS = 32
_COUNT = (1 << _COUNT_BITS) - 1


class Quota:
    """One an API server. Everything it counts is of requests that brought a right key."""

    def __init__(self, settings: AdmissionSettings, board: Board, slot: Slot, metrics: Metrics) -> None:
        self._settings = settings
        self._board = board
        self._cells = slot.keys
        self._metrics = metrics

    def enter(self, key: ApiKey) -> None:
        """Count a request of this key until `leave`. Raises TooManyRequests, and then there is nothing to leave."""
        first = len(KeyCell) * key.number
        cells = self._cells
        cells[first + KeyCell.REQUESTS] += 1
        cells[first + KeyCell.IN_FLIGHT] += 1
        most = self._settings.max_inflight_per_key
        if most and self._board.key_total(key.number, KeyCell.IN_FLIGHT) > most:
            self._refuse(key, "key_inflight", f"has {most} requests in progress, its limit", 1)
        most = self._settings.max_requests_per_minute_per_key
        if most and self._count_in_minute(key) > most:
            left = _MINUTE_SECONDS - int(time.monotonic()) % _MINUTE_SECONDS
            self._refuse(key, "key_rate", f"has sent {most} requests in this minute, its limit", left)

    def leave(self, key: ApiKey) -> None:
        self._cells[len(KeyCell) * key.number + KeyCell.IN_FLIGHT] -= 1

    def _count_in_minute(self, key: ApiKey) -> int:
        """This one included, over all API servers; those that are refused count as well."""
        minute = int(time.monotonic()) // _MINUTE_SECONDS
        at = len(KeyCell) * key.number + KeyCell.MINUTE
        cells = self._cells
        if cells[at] >> _COUNT_BITS != minute:
            cells[at] = minute << _COUNT_BITS
        cells[at] += 1
        of_all = (slot.keys[at] for slot in self._board.used_slots)
        return sum(cell & _COUNT for cell in of_all if cell >> _COUNT_BITS == minute)

    def _refuse(self, key: ApiKey, limit: str, what: str, retry_after_seconds: int) -> NoReturn:
        self.leave(key)
        self._cells[len(KeyCell) * key.number + KeyCell.REFUSED] += 1
        self._metrics.rejected(limit)
        raise TooManyRequests(f"The API key '{key.name}' {what}.", retry_after_seconds=retry_after_seconds)

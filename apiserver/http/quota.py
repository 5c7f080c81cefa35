"""What one API key may ask of the pool: so many requests at a time, so many a minute; and the counts of each.

As with the pool's own limits, each API server counts in its own slot, adds first and then looks at the sum of all. The
minutes are those of the machine's monotonic clock, so no window slides: within a limit of 100, 200 can come in the two
seconds around a minute's end.
"""

import time
from typing import NoReturn

from apiserver.api_keys import ApiKey
from apiserver.board import Board, KeyCell, Slot, key_cell
from apiserver.config import AdmissionSettings
from apiserver.errors import TooManyRequests
from apiserver.metrics import Metrics

_REQUESTS, _MINUTE = int(KeyCell.REQUESTS), int(KeyCell.MINUTE)
_MINUTE_SECONDS = 60
_COUNT_BITS = 32
_COUNT = (1 << _COUNT_BITS) - 1


class Quota:
    """One an API server. Everything it counts is of requests that brought a right key."""

    def __init__(self, settings: AdmissionSettings, board: Board, slot: Slot, metrics: Metrics) -> None:
        self._most_inflight = settings.max_inflight_per_key
        self._most_in_minute = settings.max_requests_per_minute_per_key
        self._board = board
        self._cells = slot.keys
        self._metrics = metrics

    def enter(self, key: ApiKey) -> None:
        """Count a request of this key until `leave`. Raises TooManyRequests, and then there is nothing to leave."""
        first = key_cell(key.number, KeyCell.IN_FLIGHT)  # the first of a key's cells
        cells = self._cells
        cells[first] += 1
        cells[first + _REQUESTS] += 1
        if self._most_inflight and self._board.key_total(first) > self._most_inflight:
            self._refuse(key, "key_inflight", f"has {self._most_inflight} requests in progress, its limit", 1)
        if self._most_in_minute and self._count_in_minute(first + _MINUTE) > self._most_in_minute:
            left = _MINUTE_SECONDS - int(time.monotonic()) % _MINUTE_SECONDS
            self._refuse(key, "key_rate", f"has sent {self._most_in_minute} requests in this minute, its limit", left)

    def leave(self, key: ApiKey) -> None:
        self._cells[key_cell(key.number, KeyCell.IN_FLIGHT)] -= 1

    def _count_in_minute(self, at: int) -> int:
        """This one included, over all API servers; those that are refused count as well."""
        minute = int(time.monotonic()) // _MINUTE_SECONDS
        cells = self._cells
        cells[at] = cells[at] + 1 if cells[at] >> _COUNT_BITS == minute else (minute << _COUNT_BITS) + 1
        return sum(cell & _COUNT for cell in self._board.key_cells(at) if cell >> _COUNT_BITS == minute)

    def _refuse(self, key: ApiKey, limit: str, what: str, retry_after_seconds: int) -> NoReturn:
        self.leave(key)
        self._cells[key_cell(key.number, KeyCell.REFUSED)] += 1
        self._metrics.rejected(limit)
        raise TooManyRequests(f"The API key '{key.name}' {what}.", retry_after_seconds=retry_after_seconds)

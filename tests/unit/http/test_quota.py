"""What one API key may ask for, counted over all API servers."""

import time

import pytest

from apiserver.api_keys import ApiKey
from apiserver.board import Board, KeyCell, key_cell
from apiserver.config import AdmissionSettings
from apiserver.errors import TooManyRequests
from apiserver.http.app import ROUTES
from apiserver.http.quota import Quota
from apiserver.metrics import Metrics

ALICE, BOB = ApiKey("alice", 0, b""), ApiKey("bob", 1, b"")


class Pool:
    def __init__(self, **limits: int) -> None:
        self.board = Board(2)
        metrics = Metrics(ROUTES)
        metrics.bind(self.board.slot(0).metrics)
        self.first, self.second = (
            Quota(AdmissionSettings(**limits), self.board, self.board.slot(number), metrics) for number in (0, 1)
        )

    def count(self, key: ApiKey, cell: KeyCell) -> int:
        return self.board.key_total(key_cell(key.number, cell))


def test_a_key_has_its_limit_over_all_workers_and_another_key_its_own() -> None:
    pool = Pool(max_inflight_per_key=2)
    pool.first.enter(ALICE)
    pool.second.enter(ALICE)
    for quota in (pool.first, pool.second):
        with pytest.raises(TooManyRequests, match="'alice' has 2 requests in progress"):
            quota.enter(ALICE)
    pool.first.enter(BOB)
    pool.second.leave(ALICE)
    pool.first.enter(ALICE)
    assert (pool.count(ALICE, KeyCell.IN_FLIGHT), pool.count(BOB, KeyCell.IN_FLIGHT)) == (2, 1)
    assert (pool.count(ALICE, KeyCell.REQUESTS), pool.count(ALICE, KeyCell.REFUSED)) == (5, 2)


def test_a_minute_is_counted_over_all_workers_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 6000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    pool = Pool(max_requests_per_minute_per_key=3)
    for quota in (pool.first, pool.second, pool.first):
        quota.enter(ALICE)
        quota.leave(ALICE)
    now = 6015.0
    with pytest.raises(TooManyRequests, match="3 requests in this minute") as caught:
        pool.second.enter(ALICE)
    assert caught.value.headers == {"retry-after": "45"}
    pool.second.enter(BOB)
    now = 6060.0
    for quota in (pool.first, pool.second, pool.second):
        quota.enter(ALICE)
    assert pool.count(ALICE, KeyCell.IN_FLIGHT) == 3


def test_a_dead_workers_requests_are_in_flight_no_more_and_still_counted() -> None:
    pool = Pool(max_inflight_per_key=1)
    pool.first.enter(ALICE)
    pool.board.slot(0).vacate()
    pool.second.enter(ALICE)
    assert (pool.count(ALICE, KeyCell.IN_FLIGHT), pool.count(ALICE, KeyCell.REQUESTS)) == (1, 2)

"""What the pool takes on: counted by every worker, limited for all, given back whatever happens."""

from collections.abc import Callable

import pytest

from apiserver.board import Board, Cell
from apiserver.config import AdmissionSettings
from apiserver.errors import InvalidRequest, Overloaded
from apiserver.http.app import ROUTES
from apiserver.metrics import Metrics
from apiserver.pipeline.admission import Admission, CompletionRate
from engine_bridge.wire import Embed, Embedding, pack_ids

COUNTED = (Cell.ADMITTED, Cell.QUEUED, Cell.QUEUED_TOKENS)


class Pool:
    """The same limits as two workers have them."""

    def __init__(self, **limits: int) -> None:
        self.board = Board(2)
        metrics = Metrics(ROUTES)
        metrics.bind(self.board.slot(0).metrics)
        self.first, self.second = (
            Admission(AdmissionSettings(**limits), self.board, self.board.slot(number), metrics) for number in (0, 1)
        )

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(self.board.total(cell) for cell in COUNTED)


def embeds(*sizes: int) -> list[Embed]:
    return [Embed(number, pack_ids([1] * size)) for number, size in enumerate(sizes)]


def answers(*numbers: int) -> list[Embedding]:
    return [Embedding(number, b"") for number in numbers]


def refused(act: Callable[[], object]) -> Overloaded:
    with pytest.raises(Overloaded) as caught:
        act()
    return caught.value


def test_the_limit_is_on_what_all_workers_have_together() -> None:
    pool = Pool(max_inflight=3)
    with pool.first.enter(2, "n"), pool.second.enter(1, "n"):
        for admission in (pool.first, pool.second):
            assert "3 requests in progress" in refused(lambda admission=admission: admission.enter(1, "n")).message
        assert pool.counts == (3, 3, 0)
    with pool.first.enter(3, "n"):
        pass
    assert pool.counts == (0, 0, 0)


def test_what_has_been_begun_waits_no_more() -> None:
    pool = Pool(max_queued_requests=2)
    with pool.first.enter(2, "n") as place:
        place.submit(embeds(5, 7))
        assert pool.counts == (2, 2, 12)
        refused(lambda: pool.second.enter(1, "n"))
        place.begin(answers(0))
        assert pool.counts == (2, 1, 7)
        with pool.second.enter(1, "n"):
            assert pool.counts == (3, 2, 7)
        place.begin(answers(0, 1))
        place.begin(answers(1))
        assert pool.counts == (2, 0, 0)
    assert pool.counts == (0, 0, 0)


def test_tokens_wait_from_their_submission_on_and_one_prompt_alone_is_never_too_long() -> None:
    pool = Pool(max_queued_tokens=10)
    with pool.first.enter(1, "input") as long:
        long.submit(embeds(50))
        with pool.second.enter(1, "input") as place:
            assert "50 prompt tokens waiting" in refused(lambda: place.submit(embeds(1))).message
            long.begin(answers(0))
            place.submit(embeds(4))
            with pool.first.enter(2, "input") as other:
                refused(lambda: other.submit(embeds(3, 4)))
                assert pool.counts == (4, 3, 4)
    assert pool.counts == (0, 0, 0)


@pytest.mark.parametrize("limits", [{"max_inflight": 4}, {"max_queued_requests": 4}])
def test_what_can_never_fit_is_no_503_that_somebody_would_repeat(limits: dict[str, int]) -> None:
    pool = Pool(**limits)
    with pytest.raises(InvalidRequest, match="5 requests to the engine") as caught:
        pool.first.enter(5, "n")
    assert caught.value.param == "n"
    assert pool.counts == (0, 0, 0)


@pytest.mark.parametrize("submitted", [False, True])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_gives_everything_back(submitted: bool, error: type[BaseException]) -> None:
    pool = Pool(max_inflight=5)

    def fail() -> None:
        with pool.first.enter(2, "n") as place:
            if submitted:
                place.submit(embeds(3, 4))
                place.begin(answers(1))
            raise error

    with pytest.raises(error):
        fail()
    assert pool.counts == (0, 0, 0)


def test_a_dead_workers_share_goes_with_it() -> None:
    pool = Pool(max_inflight=2)
    with pool.second.enter(1, "n"):
        place = pool.first.enter(1, "n")
        place.submit(embeds(9))
        assert pool.counts == (2, 2, 9)
        pool.board.slot(0).vacate()
        assert pool.counts == (1, 1, 0)
    with pool.second.enter(2, "n"):
        pass


def test_without_a_limit_nothing_is_counted() -> None:
    pool = Pool()
    pool.first.beat(1.0)
    with pool.first.enter(1000, "n") as place:
        place.submit(embeds(5))
        assert not place.queued
        assert pool.counts == (0, 0, 0)


def test_a_refusal_tells_how_long_the_pool_will_take_for_what_it_has() -> None:
    pool = Pool(max_inflight=6)
    with pool.first.enter(6, "n"):
        for second in range(5):
            pool.second.beat(float(second))
            pool.board.slot(0).cells[Cell.ENDED] += 2
        assert refused(lambda: pool.second.enter(1, "n")).headers == {"retry-after": "3"}


def test_a_pool_that_never_ended_anything_says_one_second_and_then_as_long_as_it_has_been_at_it() -> None:
    rate = CompletionRate()
    assert rate.seconds_for(10) == 1
    for second in range(10):
        rate.see(float(second), 0, busy=True)
    assert 5 <= rate.seconds_for(10) <= 9


def test_idle_time_does_not_make_the_pool_seem_slow() -> None:
    rate = CompletionRate()
    for second in range(10):
        rate.see(float(second), second * 10, busy=True)
    for second in range(10, 1000):
        rate.see(float(second), 90, busy=False)
    assert rate.seconds_for(20) == 2


def test_what_was_fast_long_ago_does_not_count_for_ever() -> None:
    rate = CompletionRate()
    for second in range(100):
        rate.see(float(second), second * 10, busy=True)
    for second in range(100, 400):
        rate.see(float(second), 990 + (second - 99) // 10, busy=True)
    assert 15 <= rate.seconds_for(2) <= 21
    assert rate.seconds_for(1000) == 60

"""The metrics: where each number lands, that the pool's is a sum, and that Prometheus can read it."""

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from apiserver import errors
from apiserver.board import Board
from apiserver.http.app import CLIENT_LEFT, ROUTES
from apiserver.metrics import FINISHED_REASONS, STATUSES, Gauge, Metrics
from engine_bridge.wire import FinishReason

CHAT = "/v1/chat/completions"


class Pool:
    """Metrics as two workers have them: made once, bound in each."""

    def __init__(self) -> None:
        self.board = Board(2)
        self.metrics = Metrics(ROUTES)
        self.in_slot(0)

    def in_slot(self, number: int) -> Metrics:
        self.metrics.bind(self.board.slot(number).metrics)
        return self.metrics

    def samples(self, *gauges: Gauge) -> list[Sample]:
        text = self.metrics.render([slot.metrics for slot in self.board.used_slots], gauges).decode()
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in self.samples()
            if sample.name == f"apiserver:{name}" and labels.items() <= sample.labels.items()
        )


@pytest.fixture
def pool() -> Pool:
    return Pool()


def test_every_status_that_an_error_can_have_is_counted_as_itself() -> None:
    def all_below(kind: type[errors.ApiError]) -> Iterator[type[errors.ApiError]]:
        yield kind
        for below in kind.__subclasses__():
            yield from all_below(below)

    assert {kind.status for kind in all_below(errors.ApiError)} <= set(STATUSES)
    assert {200, CLIENT_LEFT} <= set(STATUSES)


def test_reasons_are_in_the_order_of_the_wire() -> None:
    assert [reason.upper() for reason in FINISHED_REASONS] == [reason.name for reason in sorted(FinishReason)]


def test_what_workers_count_is_told_as_one_sum(pool: Pool) -> None:
    for slot, times in ((0, 3), (1, 4)):
        metrics = pool.in_slot(slot)
        for _ in range(times):
            metrics.request_taken(CHAT)
            metrics.response_ended(CHAT, 200)
            metrics.choice_ended(FinishReason.LENGTH, 10)
    pool.in_slot(1).response_ended(CHAT, CLIENT_LEFT)
    assert pool.value("http_requests_total", route=CHAT) == 7
    assert pool.value("http_responses_total", route=CHAT, status="200") == 7
    assert pool.value("http_responses_total", route=CHAT, status="499") == 1
    assert pool.value("request_success_total", finished_reason="length") == 7
    assert pool.value("generation_tokens_total") == 70


def test_a_worker_that_dies_takes_nothing_with_it_and_its_successor_counts_on(pool: Pool) -> None:
    pool.in_slot(1).request_taken(CHAT)
    slot = pool.board.slot(1)
    slot.vacate()
    assert pool.value("http_requests_total") == 1
    slot.occupy(2)
    pool.in_slot(1).request_taken(CHAT)
    assert pool.value("http_requests_total") == 2


def test_a_status_nobody_foresaw_is_not_lost(pool: Pool) -> None:
    pool.metrics.response_ended(CHAT, 418)
    assert pool.value("http_responses_total", route=CHAT) == 1


def test_pairs_that_never_happened_are_not_told(pool: Pool) -> None:
    assert [sample for sample in pool.samples() if sample.name == "apiserver:http_responses_total"] == []
    pool.metrics.response_ended(CHAT, 400)
    [sample] = [sample for sample in pool.samples() if sample.name == "apiserver:http_responses_total"]
    assert sample.labels == {"route": CHAT, "status": "400"}


def test_a_histogram_is_cumulative_and_has_a_sum_and_a_count(pool: Pool) -> None:
    for slot, seconds in ((0, 0.0015), (1, 0.3), (0, 10_000.0)):
        pool.in_slot(slot).first_text(seconds)
    name = "time_to_first_token_seconds"
    buckets = {sample.labels["le"]: sample.value for sample in pool.samples() if sample.name.endswith(name + "_bucket")}
    assert (buckets["0.001"], buckets["0.0025"], buckets["0.5"], buckets["640.0"], buckets["+Inf"]) == (0, 1, 2, 2, 3)
    assert list(buckets.values()) == sorted(buckets.values())
    assert pool.value(name + "_count") == 3
    assert pool.value(name + "_sum") == pytest.approx(10_000.3015)


def test_a_value_on_a_bound_belongs_to_its_bucket(pool: Pool) -> None:
    """`le` means less or equal."""
    pool.metrics.first_text(0.001)
    assert pool.value("time_to_first_token_seconds_bucket", le="0.001") == 1


def test_a_whole_job_counts_its_prompt_once(pool: Pool) -> None:
    pool.metrics.job_ended(prompt_tokens=100, cached_tokens=60, seconds=0.5)
    assert pool.value("prompt_tokens_total") == 100
    assert pool.value("prompt_tokens_cached_total") == 60
    assert pool.value("e2e_request_latency_seconds_count") == 1


def test_every_number_has_a_cell_of_its_own(pool: Pool) -> None:
    metrics = pool.metrics
    for route in ROUTES:
        metrics.request_taken(route)
        for status in STATUSES:
            metrics.response_ended(route, status)
    for reason in FinishReason:
        metrics.choice_ended(reason, 1)
    metrics.job_ended(1, 1, 1.0)
    metrics.first_text(1e9)
    metrics.next_text(1e9)
    metrics.preprocessed(1e9)
    assert all(sample.value == 1 for sample in pool.samples() if sample.name == "apiserver:http_responses_total")
    assert pool.value("http_requests_total") == len(ROUTES)
    assert pool.value("http_responses_total") == len(ROUTES) * len(STATUSES)


def test_gauges_are_told_as_they_are(pool: Pool) -> None:
    gauge = Gauge("connections", "Open connections.", ("slot",), [(("0",), 3), (("1",), 4)])
    values = {sample.labels["slot"]: sample.value for sample in pool.samples(gauge) if "connections" in sample.name}
    assert values == {"0": 3, "1": 4}

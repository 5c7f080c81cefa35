"""What the pool counts, where it is kept, and how it is told.

The numbers live on the board, float64 cells in each worker's slot, so any worker can tell the pool's sum, nothing falls
when a worker dies, and the storage never grows. (prometheus_client's own multiprocess files are keyed by pid: forty
restarts leave eighty files and a slow scrape.) The library only formats. Names are vLLM's under our prefix.

On the path of a request a count is one addition to a cell found at the start; per token nothing is counted.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from apiserver.board import METRIC_CELLS

PREFIX = "apiserver:"
STATUSES = (200, 400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 499, 500, 501, 503, 504)
"""Of what was asked of a route; 499: the client left first."""
LIMITS = ("max_inflight", "max_queued_requests", "max_queued_tokens", "key_inflight", "key_rate")
"""What a request may be over; the names of vLLM's `admission_rejections` are its own as well."""
REFUSED_STATUSES = (400, 408, 431)  # that a connection answers itself, to what never became a request
FINISHED_REASONS = ("stop", "length", "abort", "error")

_TTFT = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
)
_ITL = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80)
_E2E = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.8,
    1,
    1.5,
    2,
    2.5,
    5,
    10,
    15,
    20,
    30,
    40,
    60,
    120,
    240,
    480,
    960,
)
_PREPROCESS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)

Cells: TypeAlias = "memoryview[float]"


@dataclass(frozen=True, slots=True)
class _Family:
    """A counter's or gauge's cells: one for each combination of label values, from `first` on."""

    name: str
    help: str
    label: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    first: int


@dataclass(frozen=True, slots=True)
class _Histogram:
    """Cells: one a bucket (not cumulative), one for +Inf, one for the sum."""

    name: str
    help: str
    bounds: tuple[float, ...]
    first: int

    def observe(self, cells: Cells, value: float, times: int = 1) -> None:
        cells[self.first + bisect_left(self.bounds, value)] += times
        cells[self.first + len(self.bounds) + 1] += value * times


class _Layout:
    """Hands out cells, in order."""

    def __init__(self) -> None:
        self.families: list[_Family] = []
        self.histograms: list[_Histogram] = []
        self._next = 0

    def _take(self, count: int) -> int:
        first, self._next = self._next, self._next + count
        if self._next > METRIC_CELLS:
            raise ValueError("the metrics do not fit a slot of the board: raise board.METRIC_CELLS")
        return first

    def counter(
        self, name: str, text: str, label: tuple[str, ...] = (), values: Iterable[tuple[str, ...]] = ((),)
    ) -> _Family:
        combinations = tuple(values)
        family = _Family(PREFIX + name, text, label, combinations, self._take(len(combinations)))
        self.families.append(family)
        return family

    def histogram(self, name: str, text: str, bounds: tuple[float, ...]) -> _Histogram:
        histogram = _Histogram(PREFIX + name, text, bounds, self._take(len(bounds) + 2))
        self.histograms.append(histogram)
        return histogram


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value read at the scrape; `label` is () for one that is the engine's or the pool's. `counts` says that it never
    falls: it is told as a counter."""

    name: str
    help: str
    label: tuple[str, ...]
    samples: Sequence[tuple[tuple[str, ...], float]]
    counts: bool = False


class Metrics:
    """The pool's families. The layout is made before the fork, the same for all; `bind` is the worker's own."""

    def __init__(self, routes: Sequence[str]) -> None:
        layout = self._layout = _Layout()
        self._route_numbers = {route: number for number, route in enumerate(routes)}
        self._status_numbers = {status: number for number, status in enumerate(STATUSES)}
        self._requests = layout.counter(
            "http_requests", "HTTP requests taken, by route.", ("route",), ((route,) for route in routes)
        )
        self._responses = layout.counter(
            "http_responses",
            "HTTP responses ended, by route and status (499: the client left first).",
            ("route", "status"),
            ((route, str(status)) for route in routes for status in STATUSES),
        )
        self._prompt_tokens = layout.counter("prompt_tokens", "Prompt tokens, each prompt counted once.")
        self._generation_tokens = layout.counter("generation_tokens", "Output tokens.")
        self._cached_tokens = layout.counter("prompt_tokens_cached", "Prompt tokens that the engine had cached.")
        self._finished = layout.counter(
            "request_success",
            "Choices that ended, by reason.",
            ("finished_reason",),
            ((reason,) for reason in FINISHED_REASONS),
        )
        self._add_refusals(layout)
        self._ttft = layout.histogram(
            "time_to_first_token_seconds", "From the request's body to its first text.", _TTFT
        )
        self._itl = layout.histogram("inter_token_latency_seconds", "Between two deltas of a stream.", _ITL)
        self._e2e = layout.histogram("e2e_request_latency_seconds", "From the request's body to its end.", _E2E)
        self._preprocess = layout.histogram("tokenize_seconds", "Rendering and encoding of a request.", _PREPROCESS)
        self._cells: Cells = memoryview(bytearray(8 * METRIC_CELLS)).cast("d")

    def _add_refusals(self, layout: _Layout) -> None:
        self._rejections = layout.counter(
            "admission_rejections",
            "Requests refused because the pool, or their key, was over a limit.",
            ("reason",),
            ((limit,) for limit in LIMITS),
        )
        self._deadlines = layout.counter("deadline_aborts", "Requests ended because their deadline had passed.")
        self._slow_readers = layout.counter("slow_clients_cut", "Connections cut because nobody read from them.")
        self._refusals = layout.counter(
            "connection_refusals",
            "What a connection refused before it was a request: no HTTP (400), too slow (408), too large a head (431).",
            ("status",),
            ((str(status),) for status in REFUSED_STATUSES),
        )

    def bind(self, cells: Cells) -> None:
        """Count into these cells from now on."""
        self._cells = cells

    def request_taken(self, route: str) -> None:
        self._cells[self._requests.first + self._route_numbers[route]] += 1

    def response_ended(self, route: str, status: int) -> None:
        row = self._route_numbers[route] * len(STATUSES)
        self._cells[self._responses.first + row + self._status_numbers.get(status, self._status_numbers[500])] += 1

    def rejected(self, limit: str) -> None:
        self._cells[self._rejections.first + LIMITS.index(limit)] += 1

    def deadline_passed(self) -> None:
        self._cells[self._deadlines.first] += 1

    def slow_reader_cut(self) -> None:
        self._cells[self._slow_readers.first] += 1

    def connection_refused(self, status: int) -> None:
        self._cells[self._refusals.first + REFUSED_STATUSES.index(status)] += 1

    def job_ended(self, prompt_tokens: int, cached_tokens: int, seconds: float) -> None:
        cells = self._cells
        cells[self._prompt_tokens.first] += prompt_tokens
        cells[self._cached_tokens.first] += cached_tokens
        self._e2e.observe(cells, seconds)

    def choice_ended(self, reason: int, output_tokens: int) -> None:
        cells = self._cells
        cells[self._generation_tokens.first] += output_tokens
        cells[self._finished.first + reason] += 1

    def first_text(self, seconds: float) -> None:
        self._ttft.observe(self._cells, seconds)

    def next_text(self, seconds: float) -> None:
        self._itl.observe(self._cells, seconds)

    def preprocessed(self, seconds: float) -> None:
        self._preprocess.observe(self._cells, seconds)

    def render(self, slots: Sequence[Cells], gauges: Sequence[Gauge]) -> bytes:
        """The sum over all slots, and the gauges, in Prometheus' text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Scrape(self._layout, slots, gauges))
        return generate_latest(registry)


class _Scrape(Collector):
    """One scrape's numbers, in the library's own types."""

    def __init__(self, layout: _Layout, slots: Sequence[Cells], gauges: Sequence[Gauge]) -> None:
        self._layout = layout
        self._slots = slots
        self._gauges = gauges

    def _sum(self, cell: int) -> float:
        return sum(slot[cell] for slot in self._slots)

    def collect(self) -> Iterator[Metric]:
        for family in self._layout.families:
            counter = CounterMetricFamily(family.name, family.help, labels=family.label)
            for offset, values in enumerate(family.values):
                value = self._sum(family.first + offset)
                if value or not family.label:  # hundreds of route and status pairs never happen
                    counter.add_metric(values, value)
            yield counter
        for histogram in self._layout.histograms:
            yield self._histogram(histogram)
        for gauge in self._gauges:
            kind = CounterMetricFamily if gauge.counts else GaugeMetricFamily
            metric = kind(PREFIX + gauge.name, gauge.help, labels=gauge.label)
            for values, value in gauge.samples:
                metric.add_metric(values, value)
            yield metric

    def _histogram(self, histogram: _Histogram) -> HistogramMetricFamily:
        metric = HistogramMetricFamily(histogram.name, histogram.help)
        total = 0.0
        buckets: list[tuple[str, float]] = []
        for offset, bound in enumerate((*map(float, histogram.bounds), float("inf"))):
            total += self._sum(histogram.first + offset)
            buckets.append(("+Inf" if bound == float("inf") else repr(bound), total))
        metric.add_metric([], buckets, self._sum(histogram.first + len(histogram.bounds) + 1))
        return metric

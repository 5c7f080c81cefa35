"""A pool of one worker with a real tokenizer, the log of what reaches its engine, and a poller beside it."""

import array
import contextlib
import json
import random
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics
from typing import Any

import httpx

from tests.pool import Pool, running_pool
from tests.real_tokenizers import tokenizer_directory
from tests.streams import KeptConnection, OpenRequest

COMPLETIONS = "/v1/completions"
MEGABYTE = 1_000_000
PARAGRAPHS = [piece for text in topics.topics.values() for piece in text.split("\n\n") if piece.strip()]


def prose(characters: int, seed: int) -> str:
    """English that no other seed gives."""
    order = random.Random(seed).sample(PARAGRAPHS, len(PARAGRAPHS))
    whole = "\n\n".join(order)
    return (whole * (characters // len(whole) + 1))[:characters]


@dataclass(frozen=True)
class Bench:
    """A pool of one worker, and the log of what reaches its engine."""

    pool: Pool
    log: Path

    def arrivals(self) -> list[dict[str, int]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    @contextlib.contextmanager
    def noting(self) -> Iterator[list[dict[str, int]]]:
        """What arrives within the block, filled in at its end."""
        self.pool.wait_idle()
        before = len(self.arrivals())
        found: list[dict[str, int]] = []
        yield found
        self.pool.wait_idle()
        found += self.arrivals()[before:]

    def completion(self, prompt: str, **fields: Any) -> httpx.Response:
        response = self.pool.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 1, **fields})
        assert response.status_code == 200, response.text
        return response

    def send_long(self, seed: int, **fields: Any) -> OpenRequest:
        """A prompt that takes `tokenizers` about a second, from a connection of its own; the worker has all of it."""
        body = {"prompt": prose(3 * MEGABYTE, seed), "max_tokens": 1, **fields}
        request = OpenRequest(self.pool.url, COMPLETIONS, body)
        # It was sent whole. Each of these answers is another turn of the loop, in which the worker reads on.
        with KeptConnection(self.pool.url) as other:
            for _ in range(40):
                assert other.get("/live").status == 200
        return request


@contextlib.contextmanager
def bench_of(
    directory: Path, *flags: str, tokenizer: str = "qwen3", engine: Sequence[str] = (), length: int = 2_000_000
) -> Iterator[Bench]:
    log = directory / "arrivals.jsonl"
    all_flags = ("--api-server-count", "1", "--tokenizer", str(tokenizer_directory(tokenizer)), *flags)
    limits = ("--max-model-len", str(length))
    with running_pool(directory / "pool.log", *all_flags, *limits, engine=["--arrival-log", str(log), *engine]) as pool:
        yield Bench(pool, log)


class Poller:
    """Asks on a connection of its own for as long as the block lasts: when each answer came, and how long it took."""

    def __init__(self, url: str, path: str = "/live") -> None:
        self._url = url
        self._path = path
        self._stop = threading.Event()
        self._asked = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self.latencies: list[float] = []

    def _poll(self) -> None:
        with KeptConnection(self._url) as connection:
            while not self._stop.is_set():
                began = time.perf_counter()
                assert connection.get(self._path).status == 200
                self.latencies.append(time.perf_counter() - began)
                self._asked.set()

    def __enter__(self) -> "Poller":
        self._thread.start()
        assert self._asked.wait(20)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        assert len(self.latencies) > 1

    @property
    def worst(self) -> float:
        return max(self.latencies)


def timing(headers: Any, stage: str) -> float:
    """Seconds of one stage, by Server-Timing."""
    stages = dict(entry.split(";dur=") for entry in headers["server-timing"].split(", "))
    return float(stages[stage]) / 1000


def crc_of(token_ids: list[int]) -> int:
    return zlib.crc32(array.array("i", token_ids).tobytes())

"""A started engine on a bench: what tests ask of it, and all that it has answered."""

import array
import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from engine_bridge.engines import Answer, Engine, Key
from engine_bridge.wire import (
    Capabilities,
    Embed,
    Embedding,
    Failure,
    Generate,
    Output,
    Request,
    SamplingParams,
    Score,
    pack_ids,
    unpack_ids,
)

DEADLINE_SECONDS = 30


@dataclass(frozen=True)
class EngineCase:
    """An engine under test."""

    make: Callable[[], Engine]
    make_crowded: Callable[[], Engine]
    """The same, but of 100 requests submitted at once its queue must refuse some."""
    prompt: tuple[int, ...]
    decode: Callable[[Sequence[int]], str] | None = None
    """Token ids as text; None if the engine's ids mean nothing."""


class Bench:
    """A started engine, and all that it has emitted. Every emit is checked against the promise of one end."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.capabilities = Capabilities(task="", max_model_len=0, vocab_size=0)
        self.answers: dict[Key, list[Answer]] = {}
        self.violations: list[str] = []
        self._silent: set[Key] = set()
        self._news = asyncio.Event()
        self._last_id = 0

    def emit(self, answers: Sequence[tuple[Key, Answer]]) -> None:
        for key, answer in answers:
            if key in self._silent:
                self.violations.append(f"{answer} came after the end or abort of {key}")
            if answer.request_id != key[1]:
                self.violations.append(f"{answer} for {key}")
            self.answers.setdefault(key, []).append(answer)
            if is_end(answer):
                self._silent.add(key)
        self._news.set()

    def submit(self, *requests: Request, server: bytes = b"api-0.1") -> list[Key]:
        keys = [(server, request.request_id) for request in requests]
        self.engine.submit(list(zip(keys, requests, strict=True)))
        return keys

    def abort(self, *keys: Key) -> None:
        self.engine.abort(keys)
        self._silent.update(keys)

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def generate(self, prompt: Sequence[int], **params: Any) -> Generate:
        return Generate(self.next_id(), pack_ids(tuple(prompt)), SamplingParams(**params))

    def embed(self, prompt: Sequence[int], *, dimensions: int | None = None) -> Embed:
        return Embed(self.next_id(), pack_ids(tuple(prompt)), dimensions)

    def score(self, prompt: Sequence[int], labels: Sequence[int]) -> Score:
        return Score(self.next_id(), pack_ids(tuple(prompt)), tuple(labels))

    def request(self, prompt: Sequence[int]) -> Request:
        """One of the engine's own kind; a generation is short, and its length is known."""
        if self.capabilities.task == "embed":
            return self.embed(prompt)
        return self.generate(prompt, max_tokens=3, temperature=0.0, ignore_eos=True)

    def long_request(self, prompt: Sequence[int]) -> Request:
        """One that is still running a while from now, if the engine's kind allows that."""
        if self.capabilities.task == "embed":
            return self.embed(prompt)
        return self.generate(prompt, max_tokens=self.capabilities.max_model_len - len(prompt), ignore_eos=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                self._news.clear()
                with suppress(TimeoutError):  # counts change without news, so look now and then
                    async with asyncio.timeout(0.01):
                        await self._news.wait()

    async def until_idle(self) -> None:
        await self.until(lambda: self.engine.counts() == (0, 0))

    async def ends(self, *keys: Key) -> list[Answer]:
        await self.until(lambda: all(key in self._silent for key in keys))
        return [self.answers[key][-1] for key in keys]

    async def outputs(self, request: Generate) -> list[Output]:
        (key,) = self.submit(request)
        await self.ends(key)
        outputs = [answer for answer in self.answers[key] if isinstance(answer, Output)]
        assert len(outputs) == len(self.answers[key]), self.answers[key]
        return outputs

    async def token_ids(self, request: Generate) -> list[int]:
        return ids_of(await self.outputs(request))

    async def failure(self, request: Request) -> Failure:
        (key,) = self.submit(request)
        (end,) = await self.ends(key)
        assert isinstance(end, Failure), end
        return end


def is_end(answer: Answer) -> bool:
    return not isinstance(answer, Output) or answer.finish_reason is not None


def ids_of(outputs: Sequence[Output]) -> list[int]:
    return [token_id for output in outputs for token_id in unpack_ids(output.new_token_ids)]


@asynccontextmanager
async def bench_of(engine: Engine) -> AsyncGenerator[Bench]:
    bench = Bench(engine)
    bench.capabilities = await engine.start(bench.emit)
    try:
        yield bench
    finally:
        await asyncio.wait_for(engine.close(), DEADLINE_SECONDS)
    assert not bench.violations


async def vector_of(bench: Bench, request: Embed) -> list[float]:
    (key,) = bench.submit(request)
    (end,) = await bench.ends(key)
    assert isinstance(end, Embedding), end
    return array.array("f", end.vector).tolist()


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Of vectors of length 1."""
    return sum(left * right for left, right in zip(one, other, strict=True))

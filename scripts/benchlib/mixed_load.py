"""Short streaming chats, with or without long ones beside them, while `/v1/models` is polled.

The long chats share a long beginning (so an engine with a prefix cache has little to do) and differ at the end. The
polls ask nothing of the engine, so their latency is how long the server's event loops were busy with something else.
"""

import asyncio
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from benchlib import texts
from benchlib.client import JsonClient, Reply
from benchlib.endpoints import PATHS, Sample, Workload, find_counter
from benchlib.load import closed_loop, open_loop
from benchlib.parsing import ReplyError
from benchlib.pool import Server
from benchlib.prompts import PromptMaker
from benchlib.report import Progress
from benchlib.stats import summarize

_FIRST_GUESS_CHARACTERS = 0.9  # per token: even a token a byte stays within the model's context then
_CALIBRATIONS, _CLOSE_ENOUGH = 6, 0.005
_TAIL_CHARACTERS = 200
_POLL_CONNECTIONS = 4
_SHORT_PROMPTS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSettings:
    """What one run is made of."""

    short_clients: int
    short_tokens: int
    long_clients: int
    long_tokens: int
    output_tokens: int
    poll_seconds: float
    timeout: float = 120.0


@dataclass(slots=True)
class _Seen:
    """What came back in one run."""

    short: list[Sample] = field(default_factory=list[Sample])
    long: list[Sample] = field(default_factory=list[Sample])
    polls: list[float] = field(default_factory=list[float])
    failures: dict[str, int] = field(default_factory=dict[str, int])
    until: float = 0.0

    def fail(self, what: str) -> None:
        self.failures[what] = self.failures.get(what, 0) + 1

    def document(self) -> dict[str, Any]:
        """The numbers; a request that ended after the time was over counts for latency, but not as completed."""
        numbers: dict[str, Any] = {"failures": self.failures, "models_seconds": summarize(self.polls)}
        for name, samples in (("short", self.short), ("long", self.long)):
            numbers[name] = {
                "completed": sum(sample.ended <= self.until for sample in samples),
                "prompt_tokens": summarize([float(sample.prompt_tokens) for sample in samples]),
                "ttft_seconds": summarize([sample.ttft for sample in samples if sample.ttft is not None]),
                "itl_seconds": summarize([gap for sample in samples for gap in sample.itl]),
                "e2e_seconds": summarize([sample.e2e for sample in samples]),
            }
        return numbers


class MixedLoad:
    """The load on one server. Call `prepare` before the first run."""

    def __init__(self, settings: MixedSettings, server: Server, *, model: str, http: JsonClient, seed: int) -> None:
        self._settings = settings
        self._server = server
        self._http = http
        self._rng = random.Random(seed)
        self._workload = Workload(endpoint="chat", model=model, output_tokens=settings.output_tokens, is_stream=True)
        self._prefix = ""
        self._short: list[bytes] = []

    async def prepare(self, *, with_long: bool) -> None:
        """Make the short prompts, and find how much text is so many tokens. Raises ReplyError if the server refuses."""
        settings, workload = self._settings, self._workload
        counter = await find_counter(self._http, "chat", workload.model)
        maker = PromptMaker(self._rng, settings.short_tokens, count=counter)
        with Progress("short prompts", total=_SHORT_PROMPTS, is_passing=True) as progress:
            for _ in range(_SHORT_PROMPTS):
                self._short.append(self._request(await maker.make()))
                progress.advance()
        if with_long:
            await self._calibrate()

    async def _calibrate(self) -> None:
        wanted = self._settings.long_tokens
        characters = int(wanted * _FIRST_GUESS_CHARACTERS)
        for _ in range(_CALIBRATIONS):
            self._prefix = texts.prose(characters)
            found = await self._prompt_tokens(self._prefix + self._tail(0))
            if abs(found - wanted) <= wanted * _CLOSE_ENOUGH:
                return
            characters = int(characters * wanted / found)

    async def _prompt_tokens(self, prompt: str) -> int:
        document = {
            "model": self._workload.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 1,
            "stream": False,
        }
        status, answer = await self._http.post(PATHS["chat"], document)
        if status != 200:
            raise ReplyError(f"a chat of about {self._settings.long_tokens} tokens: HTTP {status}: {answer}"[:400])
        return int(answer["usage"]["prompt_tokens"])

    def _tail(self, number: int) -> str:
        """An end that no other long prompt has."""
        paragraphs = texts.paragraphs()
        words = paragraphs[self._rng.randrange(len(paragraphs))][:_TAIL_CHARACTERS]
        return f"\n\nQuestion {number:06}: what does this have to do with it? {words}"

    def _request(self, prompt: str) -> bytes:
        return self._server.target.request("POST", PATHS["chat"], body=self._workload.body(prompt))

    def _long_requests(self) -> Iterator[bytes]:
        """Made as they are needed: each is some 150 kB."""
        for number in itertools.count(1):
            yield self._request(self._prefix + self._tail(number))

    async def run(self, title: str, *, with_long: bool, duration: float) -> dict[str, Any]:
        """One run of so many seconds."""
        settings = self._settings
        seen = _Seen()
        began = perf_counter()
        seen.until = began + duration
        with Progress(title, total=None, duration_seconds=duration) as progress:
            async with asyncio.TaskGroup() as group:
                short = self._chats(seen, self._short_requests(), seen.short, settings.short_clients, progress)
                group.create_task(short)
                if with_long:
                    long = self._chats(seen, self._long_requests(), seen.long, settings.long_clients, progress)
                    group.create_task(long)
                times = [began + at * settings.poll_seconds for at in range(int(duration / settings.poll_seconds))]
                group.create_task(self._polls(seen, times))
        return seen.document()

    async def _chats(
        self, seen: _Seen, requests: Iterator[bytes], samples: list[Sample], clients: int, progress: Progress
    ) -> None:
        def on_reply(due: float, reply: Reply) -> None:
            sample = self._workload.judge(due, reply)
            if sample.failure is None:
                samples.append(sample)
            else:
                seen.fail(f"{sample.failure} {sample.detail}"[:200].strip())
            progress.advance(is_failed=sample.failure is not None)

        await closed_loop(
            self._server.target,
            requests,
            concurrency=clients,
            until=seen.until,
            timeout_seconds=self._settings.timeout,
            on_reply=on_reply,
        )

    async def _polls(self, seen: _Seen, times: list[float]) -> None:
        def on_reply(due: float, reply: Reply) -> None:
            if reply.failure is None and reply.status == 200:
                seen.polls.append(reply.ended_at - due)
            else:
                seen.fail(f"/v1/models: {reply.failure or f'HTTP {reply.status}'}")

        target = self._server.target
        await open_loop(
            target,
            itertools.repeat(target.request("GET", "/v1/models")),
            schedule=times,
            timeout_seconds=self._settings.timeout,
            on_reply=on_reply,
            connections=_POLL_CONNECTIONS,
        )

    def _short_requests(self) -> Iterator[bytes]:
        return itertools.cycle(self._short)

"""A lane with encoders that wait until they are told to go on, and a note of who went on when."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from apiserver.config import Order
from apiserver.events import PreparedPrompt
from apiserver.pipeline.lane import Lane
from apiserver.pipeline.pace import Pace
from apiserver.pipeline.prepare import prepare_tokenize
from apiserver.pipeline.preprocess import Preprocessor
from apiserver.requests import Prompt, Text, TokenizeJob
from apiserver.timings import Timings
from apiserver.tokenizer.byte import byte_tokenizer_json
from apiserver.tokenizer.hf import HfTokenizer
from apiserver.tokenizer.template import ChatTemplate
from engine_bridge.wire import pack_ids
from tests.unit.protocol.cards import make_card

SECONDS = 10.0
CARD = make_card()
TOKENIZER = HfTokenizer(byte_tokenizer_json())
PACE = Pace(0.0, 1e-6, 1e-6)  # 2,000 characters take the two milliseconds of the lane's limit

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


def long_text(name: str) -> str:
    return name + "." * 3000


@dataclass
class Encoder:
    """A token a byte. Notes who called it, from where; waits for its gate, if it has one."""

    name: str = "fake"
    gate: threading.Event | None = None
    begun: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    texts: list[str] = field(default_factory=list[str])
    threads: set[str] = field(default_factory=set[str])
    callers: list[str] = field(default_factory=list[str])

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.texts.append(text.rstrip("."))
        self.threads.add(threading.current_thread().name)
        self.callers.append(who.get())
        self.begun.set()
        if self.gate is not None:
            assert self.gate.wait(SECONDS)
        self.ended.set()
        if text.startswith("fails"):
            raise LookupError(text)
        return list(text.encode())

    def encode_packed(self, text: str, *, add_special_tokens: bool) -> bytes:
        return pack_ids(self.encode(text, add_special_tokens=add_special_tokens))

    def encode_truncated(
        self, text: str, *, add_special_tokens: bool, most: int, side: Literal["left", "right"]
    ) -> list[int]:
        raise AssertionError("nothing is truncated here")


@dataclass
class Bench:
    """A lane, and the order in which those who used it went on."""

    lane: Lane
    inline: Encoder
    threaded: Encoder
    preprocessors: tuple[Preprocessor, Preprocessor]
    order: list[str] = field(default_factory=list[str])

    async def prepare(self, name: str, prompt: Prompt, timings: Timings | None = None) -> PreparedPrompt:
        job = TokenizeJob([prompt])
        (prepared,) = await self.lane.run(prepare_tokenize, job, CARD, timings or Timings())
        self.order.append(name)
        return prepared

    def long(self, name: str) -> "asyncio.Task[PreparedPrompt]":
        return asyncio.create_task(self.prepare(name, Text(long_text(name), "prompt")))

    def short(self, name: str) -> "asyncio.Task[PreparedPrompt]":
        return asyncio.create_task(self.prepare(name, Text(name, "prompt")))


@contextlib.asynccontextmanager
async def bench_of(order: Order = "arrival", *, gated: bool = False) -> AsyncIterator[Bench]:
    inline, threaded = Encoder(), Encoder(gate=threading.Event() if gated else None)
    preprocessors = (_preprocessor(inline), _preprocessor(threaded))
    lane = Lane(*preprocessors, PACE, order)
    try:
        yield Bench(lane, inline, threaded, preprocessors)
    finally:
        if threaded.gate is not None:
            threaded.gate.set()
        lane.close()


def _preprocessor(encoder: Encoder) -> Preprocessor:
    return Preprocessor(TOKENIZER, encoder, ChatTemplate("{{ messages[0].content }}", {}), {})


def run(check: Callable[[], Awaitable[None]]) -> None:
    """With a loop that takes what nobody handles for a failure."""

    async def checked() -> None:
        unhandled: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        async with asyncio.timeout(SECONDS):
            await check()
        await turn()
        assert unhandled == []

    asyncio.run(checked())


async def turn() -> None:
    """A few turns of the loop: whatever can go on has gone on."""
    for _ in range(5):
        await asyncio.sleep(0)


async def begun(encoder: Encoder) -> None:
    await asyncio.to_thread(encoder.begun.wait, SECONDS)


async def until_idle(lane: Lane) -> None:
    """The thread's ends arrive in a later turn of the loop."""
    for _ in range(1_000_000):
        if lane.outstanding == 0:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{lane.outstanding} outstanding")

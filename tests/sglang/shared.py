"""One SGLang for many tests: it takes ten seconds to start, so a test gets a stand-in to start and close."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import uvloop

from engine_bridge.engines import Answer, Emit, Key
from engine_bridge.engines.sglang import SglangEngine, create
from engine_bridge.wire import Capabilities, Request
from tests.sglang.tiny_models import directory

T = TypeVar("T")


class Running:
    """A started SglangEngine on a loop of its own, until `stop`."""

    def __init__(self, model: str, *flags: str) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self.engine = create(str(directory(model)), list(flags))
        self.emit: Emit = _nobody
        self.capabilities: Capabilities = self.run(self.engine.start(lambda answers: self.emit(answers)))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def shared(self) -> "Shared":
        return Shared(self)

    def stop(self) -> None:
        self.run(self.engine.close())
        self._runner.close()


class Shared:
    """An Engine for one test: what it leaves behind is aborted, and must be gone, when it is closed."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._engine: SglangEngine = running.engine
        self._keys: set[Key] = set()

    async def start(self, emit: Emit) -> Capabilities:
        self._running.emit = emit
        return self._running.capabilities

    def submit(self, requests: Sequence[tuple[Key, Request]]) -> None:
        self._keys.update(key for key, _ in requests)
        self._engine.submit(requests)

    def abort(self, keys: Sequence[Key]) -> None:
        self._engine.abort(keys)

    def counts(self) -> tuple[int, int]:
        return self._engine.counts()

    async def admin(self, verb: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._engine.admin(verb, arguments)

    async def close(self) -> None:
        self._engine.abort(list(self._keys))
        never = asyncio.Event()
        while self._engine.counts() != (0, 0):
            with suppress(TimeoutError):
                await asyncio.wait_for(never.wait(), 0.01)


class OnSharedEngine:
    """For a contract's subclass: its tests run on the running engine's loop. `running` and `crowded` are fixtures."""

    def run(self, engine: Any, test: Callable[[Any], Any]) -> None:
        from tests.engine_bench import bench_of

        async def with_engine() -> None:
            async with bench_of(engine) as bench:
                await test(bench)

        engine._running.run(with_engine())


def _nobody(answers: Sequence[tuple[Key, Answer]]) -> None:
    raise AssertionError(f"between two tests: {answers}")

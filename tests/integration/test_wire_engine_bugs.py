"""What a bug in an engine does to the core, and to everybody else's requests: as little as can be."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from engine_bridge import wire
from engine_bridge.engines import Emit, EngineError, Key
from engine_bridge.status import EngineState
from engine_bridge.wire import Failure, FailureKind, FinishReason, Output, pack_ids
from tests.broken_engine import Broken
from tests.ends import ENDLESS, collect, ends, generate, run, until


class Scribbling(Broken):
    """An engine whose answers to every second request cannot be written down, and that cannot abort."""

    def __init__(self) -> None:
        super().__init__("answers")

    async def start(self, emit: Emit) -> wire.Capabilities:
        self._emit = emit
        return await super().start(emit)

    def submit(self, requests: Sequence[tuple[Key, wire.Request]]) -> None:
        no_number: Any = object()
        bad = (
            Failure(0, FailureKind.INVALID, "\udcff"),
            Output(0, cached_tokens=1 << 70),
            Output(0, queued_seconds=no_number),
        )
        answers: list[tuple[Key, wire.Output | Failure]] = []
        for key, _ in requests:
            answer = bad[key[1] % 6 // 2] if key[1] % 2 else Output(0, pack_ids([1]), FinishReason.LENGTH)
            answers.append((key, msgspec.structs.replace(answer, request_id=key[1])))
        self._emit(answers)

    def abort(self, keys: Sequence[Key]) -> None:
        raise RuntimeError("a bug in the engine")


def test_an_answer_that_cannot_be_encoded_fails_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with ends(engine=Scribbling()) as both:
            client = await both.welcomed()
            async with AsyncExitStack() as stack:
                submissions = [await stack.enter_async_context(client.open()) for _ in range(6)]
                asked = [generate(submission, ENDLESS) for submission in submissions]
                for request_id, submission in zip(asked, submissions, strict=True):
                    [*_, end] = await collect(submission)
                    if request_id % 2:
                        assert isinstance(end, Failure)
                        assert end.kind is FailureKind.INTERNAL
                    else:
                        assert isinstance(end, Output)
            async with client.open() as submission:
                generate(submission, ENDLESS)
                await collect(submission)
            assert both.row.state is EngineState.READY

    run(test)
    assert caplog.text.count("an answer cannot be encoded") >= 3


class Uncounted(Broken):
    """An engine that does not know what it has."""

    def counts(self) -> tuple[int, int]:
        raise RuntimeError("a bug in the engine")


def test_a_heartbeat_that_fails_says_why(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with ends(engine=Uncounted("counts")):
            await until(lambda: "a bug in the engine" in caplog.text, "the reason in the log")

    run(test)


class Unclosable(Broken):
    """An engine that cannot even be closed."""

    async def close(self) -> None:
        raise RuntimeError("a bug in the engine")


@pytest.mark.parametrize("where", ["start", "submit"])
def test_an_engine_that_cannot_be_closed_does_not_keep_its_core_from_ending(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with ends(engine=Unclosable(where)) as both:
            if where == "start":
                with pytest.raises(EngineError, match="the model is not there"):
                    await both.running
                both.running = asyncio.create_task(asyncio.sleep(0))
            else:
                await both.welcomed()
                await both.stop()
        # and `ends` could end the context, so no socket of the core was left open

    run(test)
    assert "a bug in the engine" in caplog.text

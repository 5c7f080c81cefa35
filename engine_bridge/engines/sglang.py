"""SGLang as an engine: a scheduler process (and more of them, on more GPUs) behind SGLang's own `Engine`.

Token ids go in and come out; SGLang's tokenizing, its HTTP server and its detokenizer have no part in it. This file
and those beside it whose names begin with `sglang` are the only ones that know SGLang. What of SGLang 0.5.23 they
guard against is said where they do: `sglang_launch` for the processes, `sglang_request` for what a request can do to
them, `sglang_answers` for what it says twice or not at all, `sglang_scheduler` for what it lacks without a tokenizer.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from engine_bridge import sglang_flags
from engine_bridge.engines import Emit, EngineError, Key
from engine_bridge.engines.sglang_log import LogRelay
from engine_bridge.status import Figures
from engine_bridge.wire import Capabilities, Request

if TYPE_CHECKING:
    from engine_bridge.engines.sglang_launch import Launch
    from engine_bridge.engines.sglang_session import Session

log = logging.getLogger("engine_bridge.sglang")


class SglangEngine:
    """An Engine, and Attended. start() raises EngineError if SGLang cannot load the model."""

    def __init__(self, server_args: Any) -> None:
        self._server_args = server_args
        self._relay = LogRelay(per_batch=server_args.log_level == "debug")
        self._launch: Launch | None = None
        self._session: Session | None = None
        self._failure: asyncio.Future[str] | None = None

    async def start(self, emit: Emit) -> Capabilities:
        loop = asyncio.get_running_loop()
        self._failure = loop.create_future()
        # Logprobs are the model's own, as every engine here gives them, and not those after temperature.
        os.environ.setdefault("SGLANG_RETURN_ORIGINAL_LOGPROB", "1")
        # A scheduler that has raised says so to its parent by this; the default would end us without a word.
        loop.add_signal_handler(signal.SIGQUIT, self._fail, "SGLang's scheduler has failed")
        launch_class, session_class = await asyncio.to_thread(_import_all)
        self._relay.stage = "starting SGLang's processes"
        self._launch = launch_class(self._server_args, self._relay)
        engine = await self._launch.open()
        self._session = session_class(engine, emit, self._fail)
        self._launch.watch(self._fail)
        self._relay.stage = "warming up"
        capabilities = await self._or_failure(self._session.warm_up())
        self._relay.stage = ""
        return capabilities

    async def _or_failure(self, work: Any) -> Any:
        """What the coroutine gives. Raises EngineError if SGLang dies meanwhile."""
        assert self._failure is not None
        task = asyncio.ensure_future(work)
        await asyncio.wait((task, self._failure), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        raise EngineError(self._failure.result())

    def _fail(self, reason: str) -> None:
        assert self._failure is not None
        if not self._failure.done():
            words = self._launch.last_words() if self._launch is not None else ""
            self._failure.set_result(reason if words in reason else reason + words)

    def submit(self, requests: Sequence[tuple[Key, Request]]) -> None:
        assert self._session is not None
        self._session.submit(requests)

    def abort(self, keys: Sequence[Key]) -> None:
        if self._session is not None:
            self._session.abort(keys)

    def counts(self) -> tuple[int, int]:
        return self._session.counts() if self._session is not None else (0, 0)

    def figures(self) -> Figures:
        if self._session is None:
            return Figures(stage=self._relay.stage)
        return self._session.figures(self._relay.stage)

    async def failure(self) -> str:
        assert self._failure is not None
        return await asyncio.shield(self._failure)

    async def admin(self, verb: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self._session is not None
        return await self._session.admin.do(verb, arguments)

    async def close(self) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGQUIT)
        failed = self._failure is not None and self._failure.done()
        if self._launch is not None:
            self._launch.unwatch()
        if self._session is not None:
            await self._session.close(is_gone=failed)
        if self._launch is not None:
            await self._launch.close(asked=self._session is not None and not failed)
        self._session = self._launch = None


def _import_all() -> tuple[type["Launch"], type["Session"]]:
    """In a thread: SGLang and what it wants take seconds to import."""
    from engine_bridge.engines.sglang_launch import Launch, guard_group
    from engine_bridge.engines.sglang_session import Session

    guard_group()
    return Launch, Session


def create(model: str, arguments: list[str]) -> SglangEngine:
    """The engine for this model (a directory or a hub id), from everything that stood after `--`."""
    objection = sglang_flags.objection(arguments)
    if objection is not None:
        raise EngineError(objection)
    try:
        from engine_bridge.engines.sglang_arguments import parse
    except ImportError as error:
        raise EngineError(f"sglang: {error.name} is missing; pip install 'apiserver-pool[sglang]'") from error
    return SglangEngine(parse(model, arguments))

"""What an engine is, to the core: five calls and one callback, all on the core's loop.

An engine whose step blocks runs it in a thread of its own (the step must release the GIL) and comes back to the loop
with `loop.call_soon_threadsafe`; the core itself never blocks.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from engine_bridge.status import Figures
from engine_bridge.wire import Capabilities, Embedding, Failure, Output, Request, Scores

Key = tuple[bytes, int]
"""Whose request (the ROUTER identity) and which (its request_id there). Opaque to engines, but hashable and unique."""

Answer = Output | Embedding | Scores | Failure

Emit = Callable[[Sequence[tuple[Key, Answer]]], None]
"""Call on the loop, once per step, with that step's answers for all requests. An empty list says that it is at work
(a long prompt's progress): an engine that has work and says nothing for long is taken for dead."""


class Engine(Protocol):
    """A loaded model that takes token ids and gives token ids or vectors.

    Every submitted request gets exactly one end (an Output with a finish_reason, an Embedding, Scores or a Failure)
    unless it was aborted through `abort`, after which nothing more is emitted for it. Answers carry
    `request_id = key[1]`.
    """

    async def start(self, emit: Emit) -> Capabilities:
        """Load the model. Blocking work belongs in a thread; raise EngineError with one clear line if it cannot be."""
        ...

    def submit(self, requests: Sequence[tuple[Key, Request]]) -> None:
        """Queue requests. Never raises: what cannot be served is emitted as a Failure."""
        ...

    def abort(self, keys: Sequence[Key]) -> None:
        """Forget these requests, running or waiting; unknown keys are ignored."""
        ...

    def counts(self) -> tuple[int, int]:
        """How many requests are running, and how many wait."""
        ...

    async def admin(self, verb: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do one of the verbs of its capabilities; returns what JSON can hold. Raises EngineRefusal if it cannot."""
        ...

    async def close(self) -> None:
        """Stop all work and threads, and free the model."""
        ...


@runtime_checkable
class Attended(Protocol):
    """What an engine offers besides if its work is done by processes of its own; the core asks where it is there."""

    def figures(self) -> Figures:
        """Called ten times a second from the first moment of `start` on; must be cheap, and never raise."""
        ...

    async def failure(self) -> str:
        """Returns one line that says why, when a started engine cannot go on. The core then ends."""
        ...


class EngineError(Exception):
    """The engine cannot start or go on; the message is one line for the person at the terminal."""


class EngineRefusal(Exception):
    """What was asked of the engine as a whole cannot be done; the message is one sentence for the client."""

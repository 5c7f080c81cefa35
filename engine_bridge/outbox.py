"""What the engine core has to say, by API server, until it leaves: one message for each turn of the loop, or step."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from engine_bridge import wire
from engine_bridge.engines import Answer, Key
from engine_bridge.wire import Failure, FailureKind

_UNENCODABLE = (ValueError, TypeError, OverflowError)

log = logging.getLogger("engine_bridge.outbox")


class Outbox:
    """`send` takes an identity and a payload, now; `abort`, soon, requests whose answers cannot be told."""

    def __init__(self, send: Callable[[bytes, bytes], None], abort: Callable[[Sequence[Key]], None]) -> None:
        self._send = send
        self._abort = abort
        self.pending: dict[bytes, list[wire.ToServer]] = {}
        """For whoever has many at once, and calls `flush` then. It is another one after that."""

    def queue(self, identity: bytes, message: wire.ToServer) -> None:
        """It leaves with this turn of the loop."""
        if not self.pending:
            asyncio.get_running_loop().call_soon(self.flush)
        self.pending.setdefault(identity, []).append(message)

    def flush(self) -> None:
        pending, self.pending = self.pending, {}
        for identity, messages in pending.items():
            self._send(identity, self._encode(identity, messages))

    def _encode(self, identity: bytes, messages: Sequence[wire.ToServer]) -> bytes:
        """An answer that cannot be encoded fails alone: the others of its step are other clients'."""
        try:
            return wire.encode(messages)
        except _UNENCODABLE:
            return wire.encode([self._encodable(identity, message) for message in messages])

    def _encodable(self, identity: bytes, message: wire.ToServer) -> wire.ToServer:
        try:
            wire.encode(message)
        except _UNENCODABLE:
            if not isinstance(message, Answer | wire.AdminDone):
                raise
            log.exception("an answer cannot be encoded; its request fails")
            asyncio.get_running_loop().call_soon(self._abort, [(identity, message.request_id)])
            return Failure(message.request_id, FailureKind.INTERNAL, "the engine gave an answer that cannot be told")
        return message

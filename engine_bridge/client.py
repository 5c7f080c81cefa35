"""The API server's end of the wire: submit, receive, abort.

One `EngineClient` a process; one `Submission` (submission.py) a request of a client, which may be many requests of the
engine. Requests of one turn of the loop leave in one message, and each answer goes to the submission that waits for it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from engine_bridge import wire
from engine_bridge.pieces import cut
from engine_bridge.submission import Answer, Submission
from engine_bridge.transport import Channel, ClientKeys, PeerGone, ZContext, dealer, one_frame, remote_dealer
from engine_bridge.wire import Accepted, Capabilities, EngineDown, Failure, Output, Rejected, Request, Welcome

_REASON_SECONDS = 0.1  # until ZMQ has said why nothing can be sent any more
_ENDS = frozenset((Failure, wire.Scores, wire.AdminDone))

log = logging.getLogger("engine_bridge.client")


class EngineUnavailable(Exception):
    """Base of the two below: this request cannot be served now, by no fault of its own."""


class EngineLoading(EngineUnavailable):
    """The engine is not there yet; try again."""


class EngineDead(EngineUnavailable):
    """The engine was there and is gone; whatever waited for it fails with this."""


class AdminFailed(Exception):
    """The engine would not, or could not, do it; `failure` says whose fault that is."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class EngineClient:
    """Owns the socket and knows who waits for which request id. All calls on the loop that made it.

    `on_change` is called after the handshake has ended, well or not, and after every disconnect. `check` says why an
    engine that can do this is none for us, or None.
    """

    def __init__(
        self,
        context: ZContext,
        identity: str,
        *,
        on_change: Callable[[], None] = lambda: None,
        check: Callable[[Capabilities], str | None] = lambda _: None,
    ) -> None:
        self._context = context
        self._identity = identity.encode()
        self._on_change = on_change
        self._check = check
        self._channel: Channel | None = None
        self._watch: Channel | None = None  # over tcp://, on how the connection ends
        self._mark: wire.ForEpoch | None = None  # over tcp://, the first entry of every message
        self._next_id = 0
        self._outbox: list[wire.ToCore] = []
        self._waiting: dict[int, Submission] = {}
        self._loop = asyncio.get_running_loop()
        self.capabilities: Capabilities | None = None
        self.epoch = 0
        """Of the core that has welcomed us; 0 while there is none."""
        self.down_reason: str | None = None
        self.rejection: str | None = None
        """Why the core will never take us; asking again would not help."""
        self.misfit: str | None = None
        """Why we do not take the core that has welcomed us; another one may come in its place."""
        self.heartbeat: wire.Heartbeat | None = None
        """Over tcp://: the last one of this connection, and when it came (CLOCK_MONOTONIC ns)."""
        self.heard_at = 0
        self.lost_reason = ""
        """Over tcp://, for the log: how the last connection ended. Clients get `down_reason`, without addresses."""

    def connect(self, address: str) -> None:
        """Connect, maybe again to a new incarnation, and shake hands; Welcome comes when the engine is loaded."""
        self.disconnect("the engine was restarted")
        self.down_reason = None
        self._channel = Channel(dealer(self._context, address, self._identity), self._on_message, receive=one_frame)
        self._send(wire.Hello(wire.WIRE_VERSION))

    def connect_remote(self, address: str, keys: ClientKeys | None, silence_seconds: float) -> None:
        """The same to a core on another machine, for one connection, which `beat` keeps alive: see link.py."""
        self.disconnect("the engine cannot be reached")
        socket, self._watch = remote_dealer(
            self._context, address, self._identity, keys, silence_seconds=silence_seconds, on_end=self.lose
        )
        self._channel = Channel(socket, self._on_message, receive=one_frame)
        self.beat()

    def beat(self) -> None:
        """Over tcp://: say that we are here. Until it is answered, a beat is the Hello: it may have been lost."""
        if self._mark is None:
            self._send(wire.Hello(wire.WIRE_VERSION, heartbeats=True))
        elif not self._outbox:
            self._outbox.append(self._mark)
            self._loop.call_soon(self._flush)

    def lose(self, reason: str) -> None:
        """Over tcp://: there is no connection (any more)."""
        self.lost_reason = reason
        self.disconnect("the connection to the engine was lost" if self.epoch else "the engine cannot be reached")

    def disconnect(self, reason: str) -> None:
        """Drop the socket and fail whoever waits with EngineDead."""
        self._outbox.clear()
        if self._channel is not None:
            if self._watch is not None:
                self._watch.close()
                self._watch = None
            self._channel.close()
            self._channel = None
        self.heartbeat = None
        self.misfit = None
        self._mark = None
        self.retire(reason)
        self._on_change()

    def retire(self, reason: str) -> None:
        """Take no request any more and fail whoever waits, as `disconnect` does; but the aborts still leave."""
        self.capabilities = None
        self.epoch = 0
        self.down_reason = reason
        self._end_all(reason)

    def _end_all(self, reason: str) -> None:
        waiting = self._waiting
        submissions = set(waiting.values())
        if self._channel is not None and waiting:
            self._send(wire.Abort(tuple(waiting)))
        waiting.clear()
        for submission in submissions:
            submission.fail(EngineDead(reason))

    @property
    def has_socket(self) -> bool:
        return self._channel is not None

    @property
    def in_flight(self) -> int:
        """Requests of the engine that have not ended."""
        return len(self._waiting)

    def require(self) -> Capabilities:
        """What the engine can do. Raises EngineLoading or EngineDead when there is none to ask."""
        if self.capabilities is None:
            if self.down_reason is not None:
                raise EngineDead(self.down_reason)
            raise EngineLoading("the engine is loading")
        return self.capabilities

    def open(self) -> Submission:
        """A new submission, to be entered with `async with`."""
        self.require()
        return Submission(self)

    def new_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def abort_by_client_id(self, client_request_id: str, owner: str | None = None) -> None:
        """End every request, of any API server, that carries this id; only this owner's, if there is one."""
        self.require()
        self._send(wire.AbortByClientId(client_request_id, owner))

    async def admin(self, verb: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Have it done to the engine as a whole. Raises AdminFailed, EngineLoading or EngineDead."""
        async with self.open() as submission:
            submission.submit([wire.Admin(submission.new_id(), verb, msgspec.json.encode(arguments))])
            (answer,) = await submission.receive()
            if isinstance(answer, wire.AdminDone):
                return msgspec.json.decode(answer.document, type=dict[str, Any])
            assert isinstance(answer, Failure), answer
            raise AdminFailed(answer)

    def submit(self, submission: Submission, requests: Sequence[Request | wire.Admin]) -> None:
        if self.capabilities is None:  # it went between `open` and here
            submission.fail(EngineDead(self.down_reason or "the engine is gone"))
            return
        for request in requests:
            self._waiting[request.request_id] = submission
            self._send(request)

    def abandon(self, request_ids: Sequence[int]) -> None:
        """Forget and abort; the core may have answered already."""
        ids = tuple(request_id for request_id in request_ids if self._waiting.pop(request_id, None) is not None)
        if ids and self._channel is not None:
            self._send(wire.Abort(ids))

    def _send(self, message: wire.ToCore) -> None:
        if not self._outbox:
            self._loop.call_soon(self._flush)
            if self._mark is not None:
                self._outbox.append(self._mark)
        self._outbox.append(message)

    def _flush(self) -> None:
        messages, self._outbox = self._outbox, []
        channel = self._channel
        if channel is None or not messages:
            return
        try:
            if self._watch is None:
                channel.send([self._encode(messages)])
            else:
                self._send_cut(channel, messages)
        except PeerGone:
            if self._watch is None:
                self._refuse(messages, wire.FailureKind.OVERLOADED, "the engine does not keep up")
            else:  # no connection, or one that has taken nothing for long
                self._loop.call_later(_REASON_SECONDS, self._give_up, channel)

    def _give_up(self, channel: Channel) -> None:
        if channel is self._channel:
            self.lose("what is sent does not get through")

    def _send_cut(self, channel: Channel, messages: Sequence[wire.ToCore]) -> None:
        for piece in cut(messages, self._encode):
            if isinstance(piece, bytes):
                channel.send([piece])
            else:
                self._refuse([piece], wire.FailureKind.INVALID, "the request is too large for the engine")

    def _encode(self, messages: Sequence[wire.ToCore]) -> bytes:
        """One that cannot be encoded fails alone: the others of its turn are other clients' requests."""
        try:
            return wire.encode(messages)
        except (ValueError, TypeError, OverflowError):
            return wire.encode([message for message in messages if self._is_encodable(message)])

    def _is_encodable(self, message: wire.ToCore) -> bool:
        try:
            wire.encode(message)
        except (ValueError, TypeError, OverflowError) as error:
            self._refuse([message], wire.FailureKind.INVALID, f"the request cannot be sent to the engine: {error}")
            return False
        return True

    def _refuse(self, messages: Sequence[wire.ToCore], kind: wire.FailureKind, reason: str) -> None:
        for message in messages:
            if isinstance(message, wire.Generate | wire.Embed | wire.Score | wire.Admin):
                self._deliver(Failure(message.request_id, kind, reason))

    def _on_message(self, frames: list[bytes]) -> None:
        try:
            messages = wire.decode_to_server(frames[-1])
        except (ValueError, msgspec.DecodeError, RecursionError):
            # Whose answers were in it cannot be known, so nobody may go on waiting.
            log.exception("the engine core sent what cannot be read")
            self.disconnect("the engine core sent what cannot be read")
            return
        channel = self._channel
        for message in messages:
            kind = type(message)
            if kind is Output or kind is wire.Embedding or kind in _ENDS:
                self._deliver(message)  # pyright: ignore[reportArgumentType]  # narrowed by `is`, which is measurably faster here
            else:
                self._on_control(message)
                if self._channel is not channel:
                    return  # that was the end of this connection: a Welcome behind it was for one before

    def _deliver(self, answer: Answer) -> None:
        waiting = self._waiting
        submission = waiting.get(answer.request_id)
        if submission is None:
            return  # abandoned a moment ago; its abort is on the way
        if type(answer) is not Output or answer.finish_reason is not None:
            del waiting[answer.request_id]
        submission.put(answer)

    def _on_control(self, message: wire.ToServer) -> None:
        match message:
            case Welcome():
                self._on_welcome(message)
            case Accepted():
                for request_id in message.request_ids:
                    submission = self._waiting.get(request_id)
                    if submission is not None:
                        submission.accept(request_id)
            case Rejected():
                self.rejection = message.message
                self.disconnect(message.message)
            case EngineDown():
                self.lost_reason = message.message
                self.disconnect(message.message)
            case wire.Heartbeat():
                self.heartbeat, self.heard_at = message, time.monotonic_ns()
                if self._mark is None and self.misfit is None:
                    self.down_reason = None  # it is there, and loads
            case _:
                raise AssertionError(f"not a control message: {message}")

    def _on_welcome(self, welcome: Welcome) -> None:
        if welcome.wire_version != wire.WIRE_VERSION:
            self.rejection = f"this API server speaks wire version {wire.WIRE_VERSION}, the core {welcome.wire_version}"
            self.disconnect(self.rejection)
            return
        self.misfit = self._check(welcome.capabilities)
        if self.misfit is not None:
            self.retire(self.misfit)
            self._on_change()
            return
        self.capabilities = welcome.capabilities
        self.epoch = welcome.epoch
        if self._watch is not None:
            self._mark = wire.ForEpoch(welcome.epoch)
            if self._outbox:
                self._outbox.insert(0, self._mark)
        self._on_change()

"""The engine core's end of the wire: one socket, one engine, one loop.

The core owns no queue of its own (the engine has one) and no text. It keeps who asked for what, so that an answer
finds its way, a dead API server's requests are aborted, and every request ends exactly once.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from engine_bridge import wire
from engine_bridge.address import is_tcp
from engine_bridge.client_ids import ClientIds
from engine_bridge.engines import Answer, Attended, Engine, EngineError, Key
from engine_bridge.figures import heartbeat_of
from engine_bridge.members import Allowed, Members
from engine_bridge.outbox import Outbox
from engine_bridge.peers import Peers
from engine_bridge.status import EngineRow, EngineState, Field
from engine_bridge.transport import CannotBind, Channel, PeerGone, ServerKeys, ZContext, address_of, router, with_key
from engine_bridge.verbs import carry_out
from engine_bridge.wire import Failure, FailureKind, Output

_BEAT_SECONDS = 0.1
_PROBE_BEATS = 3  # every so many beats an empty message to every API server: sending is how a dead one is noticed
_MEMBERS_BEATS = 10  # every so many beats a look at whose key may still be used
_LAST_WORDS_SECONDS = 0.5  # how long what is unsent may still leave when the core ends
_READING_SECONDS = 0.05  # and how long API servers on other machines may take to read it
_NOTHING = wire.encode([])
_SHUT_OUT = "the engine core no longer takes this pool's key"

log = logging.getLogger("engine_bridge.core")


class Core:
    """Call `run` once; it returns when `stop` was called. An API server on another machine that has been silent for
    `silence_seconds` is gone."""

    def __init__(self, engine: Engine, row: EngineRow, *, epoch: int, silence_seconds: float = 10.0) -> None:
        self._engine = engine
        self._attended = engine if isinstance(engine, Attended) else None
        self._row = row
        self._epoch = epoch
        self._stopping = asyncio.Event()
        self._farewell = "the engine is shutting down"
        self._capabilities: wire.Capabilities | None = None
        # identity → request id → client_request_id; the identities are those that have shaken hands.
        self._requests: dict[bytes, dict[int, str | None]] = {}
        self._client_ids = ClientIds()
        self._outbox = Outbox(self._send, self._abort)
        self._queue = self._outbox.queue
        self._doing: set[asyncio.Task[None]] = set()  # Admin messages
        self._behind: set[bytes] = set()  # those that have missed an answer, and may live
        self._remote = Peers(silence_seconds)  # those of them who are on other machines
        self._members: Members | None = None  # with keys
        self._is_remote = False
        self._channel: Channel | None = None
        self.address: str | None = None
        """Where it is bound, once it is; the real port, also where port 0 was asked for."""

    def stop(self) -> None:
        self._stopping.set()

    async def run(
        self, context: ZContext, address: str, keys: ServerKeys | None = None, allowed: Allowed | None = None
    ) -> None:
        """Bind, load the engine, serve until stopped. With `keys`, a Gate lets in those who are `allowed`, and here it
        is seen whether they still are. Raises EngineError if the engine cannot start or go on."""
        try:
            socket = router(context, address, keys, silence_seconds=self._remote.limit_seconds)
        except CannotBind as error:
            raise EngineError(str(error)) from error
        self.address = address_of(socket)
        self._is_remote = is_tcp(address)
        if self._is_remote:
            log.info("listening on %s (epoch %d%s)", self.address, self._epoch, "" if keys else ", without keys")
        if keys is not None and allowed is not None:
            self._members = Members(allowed)
            self._channel = Channel(socket, self._on_keyed_message, receive=with_key)
        else:
            self._channel = Channel(socket, self._on_message)
        beat = asyncio.create_task(self._beat())
        try:
            if await self._load():
                await self._serve()
        finally:
            self._say_goodbye()
            for task in (beat, *self._doing):
                task.cancel()
            await asyncio.gather(beat, *self._doing, return_exceptions=True)
            await self._close_engine()
            if self._is_remote:  # at a connection's end ZMQ drops what has come over it and was not read yet
                await asyncio.sleep(_READING_SECONDS)
            self._channel.close(_LAST_WORDS_SECONDS)

    async def _close_engine(self) -> None:
        """However that ends: with the socket open, this process would never end."""
        try:
            await self._engine.close()
        except Exception:
            log.exception("the engine has not ended properly")

    async def _load(self) -> bool:
        """Whether the engine serves now: it does not if the stop came first. Raises EngineError."""
        loading = asyncio.create_task(self._engine.start(self._emit))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            return False
        self._capabilities = loading.result()
        for identity in self._requests:
            self._queue(identity, self._welcome(self._capabilities))
        self._outbox.flush()  # before the row says ready: an API server that believes the row finds its Welcome
        self._row.mark_ready()
        return True

    async def _serve(self) -> None:
        """Until told to stop. Raises EngineError when the engine itself cannot go on."""
        stopping = asyncio.create_task(self._stopping.wait())
        waiting: list[asyncio.Task[Any]] = [stopping]
        if self._attended is not None:
            waiting.append(asyncio.create_task(self._attended.failure()))
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        if not stopping.done():
            reason = waiting[1].result().encode(errors="replace").decode()  # it may name files
            self._farewell = f"the engine failed: {reason}"
            raise EngineError(reason)

    # ---- from the API servers ----

    def _on_keyed_message(self, frames: list[bytes]) -> None:
        assert self._members is not None
        *frames, key = frames
        if self._members.hear(frames[0], key):
            self._on_message(frames)
        else:
            self._queue(frames[0], wire.EngineDown(_SHUT_OUT))

    def _on_message(self, frames: list[bytes]) -> None:
        try:
            identity, payload = frames
            messages = wire.decode_to_core(payload)
        except (ValueError, msgspec.DecodeError, RecursionError):
            self._row.add(Field.JUNK, 1)  # not of our kind: nothing in it is looked at
            return
        if self._is_for_us(identity, messages):
            self._on_messages(identity, messages)

    def _is_for_us(self, identity: bytes, messages: Sequence[wire.ToCore]) -> bool:
        """Over ipc:// the address says so. Over tcp:// each message does, but a greeting, which is all that whoever
        names no epoch can mean."""
        if messages and type(messages[0]) is wire.ForEpoch:
            return self._hear(identity, messages[0].epoch)
        if not self._is_remote or all(type(message) is wire.Hello for message in messages):
            return True
        self._queue(identity, wire.EngineDown("the message does not say which engine core it is meant for"))
        return False

    def _on_messages(self, identity: bytes, messages: Sequence[wire.ToCore]) -> None:
        submitted: list[tuple[Key, wire.Request]] = []
        for message in messages:
            match message:
                case wire.Generate() | wire.Embed() | wire.Score():
                    if self._take(identity, message):
                        submitted.append(((identity, message.request_id), message))
                case wire.Admin():
                    self._administer(identity, message)
                case wire.Abort():
                    self._abort([(identity, request_id) for request_id in message.request_ids])
                case wire.AbortByClientId():
                    self._end_early(self._client_ids.find(message.client_request_id, message.owner))
                case wire.Hello():
                    self._greet(identity, message)
                case wire.ForEpoch():
                    pass  # heeded already
        # An Abort behind its own request in one message: what the client gave up at once never starts.
        submitted = [entry for entry in submitted if self._is_known(entry[0])]
        if submitted:
            self._submit(identity, submitted)

    def _submit(self, identity: bytes, submitted: list[tuple[Key, wire.Request]]) -> None:
        accepted = tuple(key[1] for key, request in submitted if type(request) is wire.Generate)
        if accepted:
            self._queue(identity, wire.Accepted(accepted))
        self._row.add(Field.REQUESTS, len(submitted))
        try:
            self._engine.submit(submitted)
        except Exception:  # against its promise; but whoever waits must be told
            log.exception("the engine failed at taking %d requests", len(submitted))
            self._emit([(key, Failure(key[1], FailureKind.INTERNAL, "the engine failed")) for key, _ in submitted])

    def _administer(self, identity: bytes, admin: wire.Admin) -> None:
        if identity not in self._requests or self._capabilities is None or self._stopping.is_set():
            self._queue(identity, Failure(admin.request_id, FailureKind.UNAVAILABLE, "the engine is not serving"))
            return
        if admin.verb == wire.ABORT_ALL:
            aborted = msgspec.json.encode({"aborted": self._abort_requests()})
            self._queue(identity, wire.AdminDone(admin.request_id, aborted))
            return
        if admin.verb not in self._capabilities.admin:
            text = f"The engine {self._capabilities.engine} cannot do '{admin.verb}'"
            self._queue(identity, Failure(admin.request_id, FailureKind.INVALID, text))
            return
        self._row.note_output()  # from here on it has its own time
        task = asyncio.create_task(self._do(identity, admin))
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    async def _do(self, identity: bytes, admin: wire.Admin) -> None:
        answer = await carry_out(self._engine, admin)
        self._row.note_output()
        self._queue(identity, answer)

    def _greet(self, identity: bytes, hello: wire.Hello) -> None:
        if hello.wire_version != wire.WIRE_VERSION:
            text = f"the engine core speaks wire version {wire.WIRE_VERSION}, this API server {hello.wire_version}"
            log.warning("refused %s: %s", identity.decode(errors="replace"), text)
            self._queue(identity, wire.Rejected(wire.WIRE_VERSION, text))
            return
        self._abort_all(identity)  # whoever begins anew waits for nothing
        self._behind.discard(identity)
        self._requests[identity] = {}
        if hello.heartbeats:
            self._remote.expect(identity, asyncio.get_running_loop().time())
        if self._capabilities is not None:
            self._queue(identity, self._welcome(self._capabilities))

    def _hear(self, identity: bytes, epoch: int) -> bool:
        """A message over tcp:// begins: whether what follows is for us, from somebody we know."""
        if epoch == self._epoch and identity in self._requests:
            self._remote.hear(identity, asyncio.get_running_loop().time())
            return True
        text = "the engine was restarted" if epoch != self._epoch else "the engine core does not know this API server"
        self._queue(identity, wire.EngineDown(text))
        return False

    def _welcome(self, capabilities: wire.Capabilities) -> wire.Welcome:
        return wire.Welcome(wire.WIRE_VERSION, self._epoch, capabilities)

    def _take(self, identity: bytes, request: wire.Request) -> bool:
        """Note who asked; answer at once what cannot be taken."""
        refusal = self._refusal(identity, request)
        if refusal is not None:
            self._queue(identity, refusal)
            return False
        self._requests[identity][request.request_id] = request.client_request_id
        if request.client_request_id is not None:
            self._client_ids.add(request.client_request_id, (identity, request.request_id), request.owner)
        return True

    def _refusal(self, identity: bytes, request: wire.Request) -> Failure | wire.EngineDown | None:
        request_id = request.request_id
        if identity not in self._requests:
            # Taken for dead, or never introduced: what it believes and what we know differ, so it must begin anew.
            return wire.EngineDown("the engine core does not know this API server")
        if self._capabilities is None or self._stopping.is_set():
            return Failure(request_id, FailureKind.UNAVAILABLE, "the engine is not serving")
        if request_id in self._requests[identity]:
            return Failure(request_id, FailureKind.INTERNAL, "a request id was used twice")
        if len(request.prompt_token_ids) % 4:
            return Failure(request_id, FailureKind.INVALID, "prompt_token_ids are not int32")
        if isinstance(request, wire.Generate):
            asked = max(request.sampling_params.logprobs or 0, request.sampling_params.prompt_logprobs or 0)
            if asked > max(0, self._capabilities.logprobs):
                return Failure(request_id, FailureKind.INVALID, f"{asked} logprobs a token are too many")
        return None

    def _is_known(self, key: Key) -> bool:
        requests = self._requests.get(key[0])
        return requests is not None and key[1] in requests

    def _forget(self, key: Key) -> bool:
        """Whether it was known; it no longer is."""
        requests = self._requests.get(key[0])
        if requests is None or key[1] not in requests:
            return False
        client_request_id = requests.pop(key[1])
        if client_request_id is not None:
            self._client_ids.discard(client_request_id, key)
        return True

    def _abort(self, keys: Sequence[Key]) -> None:
        known = [key for key in keys if self._forget(key)]
        if known:
            try:
                self._engine.abort(known)
            except Exception:  # what came in the same message is other clients' requests
                log.exception("the engine failed at ending %d requests", len(known))

    def _abort_all(self, identity: bytes) -> None:
        self._abort([(identity, request_id) for request_id in self._requests.get(identity, ())])

    def _abort_requests(self) -> int:
        """Every request of every API server; returns how many there were."""
        keys = [(identity, request_id) for identity, requests in self._requests.items() for request_id in requests]
        self._end_early(keys)
        return len(keys)

    def _end_early(self, keys: Sequence[Key]) -> None:
        """Not their own API server wants it, so that one must be told."""
        self._abort(keys)
        for identity, request_id in keys:
            self._queue(identity, Failure(request_id, FailureKind.ABORTED, "aborted on request"))

    # ---- to the API servers ----

    def _emit(self, answers: Sequence[tuple[Key, Answer]]) -> None:
        """One step's answers: one message to each API server that has a share in it."""
        self._row.note_output()
        pending = self._outbox.pending
        tokens = 0
        for key, answer in answers:
            requests = self._requests.get(key[0])
            if requests is None or key[1] not in requests:
                continue  # aborted while the step ran
            if type(answer) is Output:
                tokens += len(answer.new_token_ids) >> 2
                if answer.finish_reason is not None:
                    self._forget(key)
            else:
                self._forget(key)
            queued = pending.get(key[0])
            if queued is None:
                pending[key[0]] = [answer]
            else:
                queued.append(answer)
        self._row.add(Field.OUTPUT_TOKENS, tokens)
        self._outbox.flush()

    def _send(self, identity: bytes, payload: bytes) -> None:
        assert self._channel is not None
        try:
            self._channel.send([identity, payload])
        except PeerGone as gone:
            if gone.is_behind:
                self._behind.add(identity)
            # Not here: this may be the middle of an engine's step, which should not find its requests gone.
            asyncio.get_running_loop().call_soon(self._drop_these, identity, self._requests.get(identity))

    def _drop_these(self, identity: bytes, requests: dict[int, str | None] | None) -> None:
        """Unless it has begun anew meanwhile, on another connection."""
        if requests is not None and requests is self._requests.get(identity):
            self._drop(identity)

    def _drop(self, identity: bytes) -> None:
        """An API server is gone: nobody waits for its requests any more."""
        requests = self._requests.get(identity)
        if requests is None:
            return
        if requests:
            log.info("%s is gone; aborting its %d requests", identity.decode(errors="replace"), len(requests))
        self._abort_all(identity)
        del self._requests[identity]
        self._remote.forget(identity)
        if self._members is not None:
            self._members.forget(identity)

    @property
    def _has_work(self) -> bool:
        """By what we know ourselves: an engine that is stuck may count wrongly."""
        return bool(self._doing) or any(self._requests.values())

    async def _beat(self) -> None:
        try:
            await self._beat_on()
        except Exception:  # whoever misses it next can only say that it is missing
            log.exception("the engine core's heartbeat has failed")

    async def _beat_on(self) -> None:
        beats = 0
        while True:
            self._row.beat(*self._engine.counts())
            if not self._has_work:
                self._row.note_output()
            if self._attended is not None:
                self._row.take_figures(self._attended.figures())
            beats += 1
            if beats % _PROBE_BEATS == 0:
                self._probe()
            if self._members is not None and beats % _MEMBERS_BEATS == 0:
                self._shut_out(self._members.removed())
            await asyncio.sleep(_BEAT_SECONDS)

    def _probe(self) -> None:
        for identity in self._remote.silent(asyncio.get_running_loop().time()):
            log.warning("nothing heard from %s for %g s", identity.decode(errors="replace"), self._remote.limit_seconds)
            self._drop(identity)
            self._queue(identity, wire.EngineDown("the engine core has not heard from this API server for too long"))
        for identity in self._behind - self._requests.keys():
            # It waits for what we have dropped. As soon as it reads again, it must know that it waits for nothing.
            self._behind.discard(identity)
            self._send(identity, wire.encode([wire.EngineDown("this API server has read too slowly from the core")]))
        heartbeat = wire.encode([heartbeat_of(self._row, self._epoch)])
        for identity in self._requests:
            self._send(identity, heartbeat if identity in self._remote else _NOTHING)

    def _shut_out(self, identities: Iterable[bytes]) -> None:
        """They may stay connected, for all that we know: ZMQ cuts nobody. But nobody hears them, or tells them anything
        but this."""
        for identity in identities:
            log.warning("%s: %s", identity.decode(errors="replace"), _SHUT_OUT)
            self._drop(identity)
            self._queue(identity, wire.EngineDown(_SHUT_OUT))

    def _say_goodbye(self) -> None:
        """Everybody who waits gets an end, as long as there is a voice to give it."""
        self._row.state = EngineState.STOPPING
        self._outbox.flush()
        for identity, requests in self._requests.items():
            failures = [Failure(request_id, FailureKind.UNAVAILABLE, self._farewell) for request_id in requests]
            self._abort_all(identity)
            self._send(identity, wire.encode([*failures, wire.EngineDown(self._farewell)]))

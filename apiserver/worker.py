"""One API server, from the fork to its end: client, pipeline, application, HTTP server, heartbeat."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import uvloop

from apiserver import log as logs
from apiserver.affinity import Affinity
from apiserver.api_keys import ApiKey
from apiserver.board import Board, Cell, Slot, WorkerState
from apiserver.card import Limits
from apiserver.child import EXIT_CANNOT_START
from apiserver.config import AccessSettings, AdmissionSettings, HttpSettings, ModelSettings, Order, StoreSettings
from apiserver.fit import Judge, Vocabulary
from apiserver.http.app import create_app, speaker_of
from apiserver.http.runs import Runs
from apiserver.http.server import HttpServer
from apiserver.http.service import Service
from apiserver.metrics import Metrics
from apiserver.pipeline import Pipeline
from apiserver.pipeline.admission import Admission
from apiserver.pipeline.lane import Lane
from apiserver.pipeline.pace import Pace
from apiserver.pipeline.preprocess import Preprocessor
from apiserver.protocol.responses_object import lost
from apiserver.remote_engine import RemoteEngine
from apiserver.store import Store
from engine_bridge.client import EngineClient
from engine_bridge.link import Link
from engine_bridge.status import EngineRow, EngineState, Field
from engine_bridge.transport import ClientKeys, make_context

_BEAT_SECONDS = 0.1
# A request makes a few hundred containers and next to no cycles: with Python's own 700 for the youngest generation the
# collector ran for every second request and took 5 to 8 % of its CPU.
_GC_THRESHOLDS = (10_000, 20, 50)
_SWITCH_SECONDS = 0.001  # how long the loop waits for the GIL while the preprocessing thread runs Python
_ERROR_END_SECONDS = 1.0  # after the drain's limit: time for the error ends to leave
_SAME_ORDER_SECONDS = (
    1.0  # a second SIGTERM this soon is the first: `systemctl stop` and pkill tell us and the supervisor
)
_WELCOME_SECONDS = 5.0  # how long a new worker waits for a loaded engine's Welcome before it serves all the same
_EXIT_FAILED = 1  # it can serve no longer, or no better than who is there: the pool goes on without it

log = logging.getLogger("apiserver.worker")


@dataclass(frozen=True)
class RemoteCore:
    """An engine core on another machine, and how this pool of API servers meets it."""

    address: str
    keys: ClientKeys | None
    silence_seconds: float
    pool_id: str  # API servers of two pools may have the same slot and pid


@dataclass(frozen=True)
class Preloaded:
    """What the parent loaded before the fork; every worker has it copy-on-write."""

    board: Board
    engine_row: EngineRow
    listeners: Sequence[socket.socket]
    engine_address: Callable[[int], str]  # epoch → address
    remote: RemoteCore | None  # instead of a core of our own
    inline: Preprocessor
    threaded: Preprocessor
    pace: Pace
    preprocess_order: Order
    encoder_reason: str  # why this encoder and not another
    metrics: Metrics
    model: ModelSettings
    http: HttpSettings
    access: AccessSettings
    vocabulary: Vocabulary
    keys: tuple[ApiKey, ...]
    key_names: tuple[str, ...]  # by number; also of keys that were taken away
    limits: Limits
    store: StoreSettings | None
    admission: AdmissionSettings
    tls: ssl.SSLContext | None
    created: int
    affinity: Affinity | None
    log_level: str


def run(preloaded: Preloaded, slot: int) -> int:
    """Serve until told to stop. Called in the forked child; returns its exit code."""
    logs.set_up(preloaded.log_level, f"api-{slot}")
    if preloaded.affinity is not None:
        os.sched_setaffinity(0, {preloaded.affinity.of_slot(slot)})
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.set_threshold(*_GC_THRESHOLDS)
    return uvloop.run(_Worker(preloaded, preloaded.board.slot(slot)).serve())


class _Worker:
    def __init__(self, preloaded: Preloaded, slot: Slot) -> None:
        self._preloaded = preloaded
        self._slot = slot
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._answered = asyncio.Event()  # the engine core has answered our handshake, one way or the other
        self._connected_to = 0  # the engine's epoch whose address we use
        self._runs = Runs(slot)
        self._store = Store(preloaded.store, lost) if preloaded.store is not None else None
        self._greeted_at = 0  # CLOCK_MONOTONIC ns
        self._told_at = 0.0  # when we were told to stop, CLOCK_MONOTONIC seconds
        self._has_ended = False  # whoever still waited was told that we stop
        self._has_failed = False
        self._judge = Judge(preloaded.vocabulary, preloaded.model.max_model_len, self._speaks)

    async def serve(self) -> int:
        preloaded, slot = self._preloaded, self._slot
        slot.set(Cell.PID, os.getpid())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, self._on_stop_signal, number)
        self._lane = Lane(preloaded.inline, preloaded.threaded, preloaded.pace, preloaded.preprocess_order)
        context = make_context()
        client = EngineClient(context, self._identity(), on_change=self._on_engine_change, check=self._judge.check)
        self._client = client
        self._remote = self._remote_engine(client)
        self._admission = Admission(preloaded.admission, preloaded.board, slot, preloaded.metrics)
        heart = asyncio.create_task(self._beat())
        heart.add_done_callback(self._on_heart_end)
        preloaded.metrics.bind(slot.metrics)
        server = HttpServer(
            create_app(self._service(client), preloaded.http, preloaded.access, preloaded.keys),
            preloaded.listeners,
            preloaded.board,
            slot,
            preloaded.metrics,
            preloaded.http,
            preloaded.tls,
            preloaded.limits.max_body_bytes,
            speaker_of,
        )
        if await self._meet_engine():
            server.start()
            slot.state = WorkerState.READY
            await self._stop.wait()
            slot.state = WorkerState.DRAINING
            await self._drain(server)
        heart.cancel()
        await asyncio.gather(heart, return_exceptions=True)
        client.disconnect("the API server is stopping")
        context.term()
        self._lane.close()
        if self._store is not None:
            await self._store.close()
        return self._exit_code()

    def _identity(self) -> str:
        name, remote = f"api-{self._slot.number}.{os.getpid()}", self._preloaded.remote
        return name if remote is None else f"{remote.pool_id}/{name}"

    def _remote_engine(self, client: EngineClient) -> RemoteEngine | None:
        preloaded, remote = self._preloaded, self._preloaded.remote
        if remote is None:
            return None
        link = Link(client, remote.address, remote.keys, remote.silence_seconds)
        return RemoteEngine(client, link, preloaded.engine_row, preloaded.board, self._slot)

    def _exit_code(self) -> int:
        if self._client.rejection is None:
            return _EXIT_FAILED if self._has_failed else 0
        log.error("the engine core and this API server do not go together: %s", self._client.rejection)
        self._slot.state = WorkerState.STARTING  # it has never been able to serve, so the pool must not go on
        return EXIT_CANNOT_START

    def _service(self, client: EngineClient) -> Service:
        preloaded = self._preloaded
        return Service(
            board=preloaded.board,
            slot=self._slot,
            engine_row=preloaded.engine_row,
            client=client,
            pipeline=Pipeline(client, self._lane, self._admission),
            http=preloaded.http,
            server_timing=preloaded.http.server_timing,
            encoder=preloaded.inline.encoder.name,
            encoder_reason=preloaded.encoder_reason,
            preprocess_order=preloaded.preprocess_order,
            metrics=preloaded.metrics,
            model=preloaded.model,
            limits=preloaded.limits,
            admission=preloaded.admission,
            key_names=preloaded.key_names,
            tokenizer_vocab_size=preloaded.inline.tokenizer.vocab_size,
            created=preloaded.created,
            store=self._store,
            runs=self._runs,
        )

    # ---- the end ----

    def _on_stop_signal(self, number: int) -> None:
        now = time.monotonic()
        if not self._stop.is_set():
            self._told_at = now
        if number == signal.SIGQUIT or now - self._told_at > _SAME_ORDER_SECONDS:
            self._stop_now.set()
        self._stop.set()
        self._answered.set()  # an engine that owes us its answer is not waited for any more

    async def _drain(self, server: HttpServer) -> None:
        """Running requests finish; what has not by the limit gets an error end before it is cut."""
        server.stop_accepting()
        draining = asyncio.create_task(self._finish(server, self._preloaded.http.drain_seconds))
        hurried = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        draining.cancel()
        await asyncio.gather(hurried, draining, return_exceptions=True)
        if self._runs.are_active or any(connection.is_busy for connection in server.connections):
            log.warning("ending %d requests of the engine that did not finish in time", self._client.in_flight)
            self._has_ended = True
            self._client.retire("the server is shutting down")
            await self._finish(server, _ERROR_END_SECONDS)
        self._has_ended = True
        await server.close()
        await self._runs.close(_ERROR_END_SECONDS)

    async def _finish(self, server: HttpServer, seconds: float) -> None:
        """Let requests, and what goes on without its client, come to their end."""
        await asyncio.gather(server.drain(seconds), self._runs.drain(seconds))

    # ---- the engine ----

    async def _meet_engine(self) -> bool:
        """While the engine loads, a worker serves at once (it answers 503); where it is loaded, a request that came
        before the handshake's end would get that 503 for nothing.

        False: an engine elsewhere serves others of this pool and not this one. So it must not take another's place: it
        may be the one with new keys that the engine does not know.
        """
        row = self._preloaded.engine_row
        if not row.is_ready:
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._answered.wait(), _WELCOME_SECONDS)
        if self._answered.is_set() or self._stop.is_set() or self._remote is None or not row.is_ready:
            return True
        reason = self._client.lost_reason or "it says nothing"
        log.error("the engine core serves other API servers of this pool, and not this one: %s", reason)
        self._has_failed = True
        return False

    def _on_engine_change(self) -> None:
        client = self._client
        self._slot.set(Cell.ENGINE_EPOCH, client.epoch)
        if client.epoch:
            self._preloaded.board.note_served()
        elif client.misfit is not None and not self._preloaded.board.has_served:
            client.rejection = client.misfit  # at the pool's start; later the engine's node may be put right again
        elif client.misfit is not None:
            self._judge.not_taken(client.misfit)
        if client.rejection is not None:
            self._stop_now.set()
            self._stop.set()
        is_decided = client.epoch or client.misfit is not None or client.rejection is not None
        if is_decided or not self._preloaded.engine_row.is_ready:
            self._answered.set()

    def _speaks(self) -> bool:
        """Whether it is for this API server to say what all of them find."""
        return self._preloaded.board.slots[0].number == self._slot.number

    def _on_heart_end(self, heart: asyncio.Task[None]) -> None:
        """Without it nobody follows the engine, and the supervisor takes us for dead before long: better to go now, and
        to say why."""
        if heart.cancelled():
            return
        log.error("the heart of this API server failed; it drains, and another one follows", exc_info=heart.exception())
        self._has_failed = True
        self._answered.set()
        self._stop.set()

    async def _beat(self) -> None:
        """Say that the loop turns, and follow the engine."""
        cells = self._slot.cells
        due = time.monotonic_ns()
        while True:
            now = time.monotonic_ns()
            cells[Cell.HEARTBEAT] = now
            cells[Cell.LOOP_LAG] = max(0, now - due)
            cells[Cell.ENGINE_REQUESTS] = self._client.in_flight
            self._admission.beat(now / 1e9)
            self._follow_engine()
            due = now + int(_BEAT_SECONDS * 1e9)
            await asyncio.sleep(_BEAT_SECONDS)

    def _follow_engine(self) -> None:
        """A new epoch has a new address; a dead engine answers nobody; one that lives and dropped us takes us back.

        Also while we drain, for the last requests of our connections; only when all were told that it is over, no more.
        """
        if self._remote is not None:
            self._remote.follow()
            return
        client, row = self._client, self._preloaded.engine_row
        epoch = row.get(Field.EPOCH)
        is_another = epoch != self._connected_to
        if (is_another or row.state is EngineState.DEAD) and client.down_reason is None and self._connected_to:
            client.disconnect("the engine died")
        if row.state is EngineState.DEAD or self._has_ended or client.rejection is not None:
            return
        is_dropped = client.down_reason is not None and client.misfit is None
        if is_another or (row.is_ready and (is_dropped or self._is_forgotten())):
            self._connected_to = epoch
            self._greeted_at = time.monotonic_ns()
            client.connect(self._preloaded.engine_address(epoch))

    def _is_forgotten(self) -> bool:
        """Whether a loaded engine owes us its Welcome: our greeting was lost."""
        owes_since = max(self._greeted_at, self._preloaded.engine_row.get(Field.READY_SINCE))
        is_unanswered = self._client.epoch == 0 and self._client.misfit is None
        return is_unanswered and time.monotonic_ns() - owes_since > _WELCOME_SECONDS * 1e9

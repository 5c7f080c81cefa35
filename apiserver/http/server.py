"""A worker's HTTP server: its accept loop on the shared socket, its connections, its drain.

Accepting. All workers watch one inherited listening socket, and uvloop's own server would accept until nothing is left,
so a burst of connections would land on whoever wakes first (measured on a peer: 8 connections on 1 to 3 of 4 workers).
So each accepts one connection at a time, and only while no serving worker has fewer open ones. A worker that yields
looks again after a millisecond, and after a few looks takes the connection anyway: few if those that it yields to are
answering something, which may hold their loops for long; more if one of them has nothing to do and only needs to be
scheduled (on a busy machine that takes longer than five milliseconds once in a while).
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Sequence
from email.utils import formatdate

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from apiserver.board import Board, Cell, Slot
from apiserver.config import HttpSettings
from apiserver.http.connection import Connection, Speaker
from apiserver.metrics import Metrics

_YIELD_SECONDS = 0.001
_MOST_YIELDS = 5
_MOST_YIELDS_TO_IDLE = 25
_SWEEP_SECONDS = 1.0
_MOST_UNSENT_BYTES = 128 * 1024  # that wait in the kernel; what is on its way comes on top, so no link runs dry
_RETIRED_IDLE_SECONDS = 0.5  # how long a retired connection may still bring a request that was on its way …
_REPLACED_IDLE_SECONDS = 5.0  # … and where the pool goes on: nobody waits for this worker's end

log = logging.getLogger("apiserver.http")


class HttpServer:
    """`start` once, `drain` once; all on the worker's loop."""

    def __init__(
        self,
        app: ASGIApp,
        listeners: Sequence[socket.socket],
        board: Board,
        slot: Slot,
        metrics: Metrics,
        settings: HttpSettings,
        tls: ssl.SSLContext | None,
        max_body_bytes: int,
        speaker: Speaker,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listeners = listeners
        self._board = board
        self._slot = slot
        self._metrics = metrics
        self._settings = settings
        self._tls = tls
        self._max_body_bytes = max_body_bytes
        self._speaker = speaker
        self._config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            root_path=settings.root_path,
            timeout_keep_alive=int(settings.keep_alive_seconds),
        )
        self._config.load()
        self._state = ServerState()
        self._connecting = 0  # accepted, and not yet among the connections (with TLS that takes a while)
        self._accepting = False
        self._draining = False
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def connections(self) -> "set[Connection]":
        return self._state.connections

    def start(self) -> None:
        self._set_date()
        self._sweeper = asyncio.create_task(self._sweep())
        self._accepting = True
        for listener in self._listeners:
            listener.setblocking(False)
            self._watch(listener)

    # ---- accept ----

    def _watch(self, listener: socket.socket) -> None:
        if self._accepting:
            self._loop.add_reader(listener.fileno(), self._on_readable, listener, 0)

    def _on_readable(self, listener: socket.socket, yields: int) -> None:
        if not self._accepting:
            return
        if self._should_yield(yields):
            if yields == 0:
                self._loop.remove_reader(listener.fileno())  # level-triggered: it would spin
            self._loop.call_later(_YIELD_SECONDS, self._on_readable, listener, yields + 1)
            return
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            connection = None  # another worker was faster, or the client has gone
        except OSError as error:
            if not self._board.is_draining:
                log.error("accept failed: %s; connections wait (ulimit -n says how many files may be open)", error)
            self._loop.remove_reader(listener.fileno())
            if self._board.is_draining:
                return  # the door is shut
            self._loop.call_later(_SWEEP_SECONDS, self._watch, listener)  # out of descriptors: give it time
            return
        if connection is not None:
            self._take(connection)
        if yields:
            self._watch(listener)

    def _should_yield(self, yields: int) -> bool:
        others = self._board.less_loaded(self._slot)
        if not others:
            return False
        return yields < (_MOST_YIELDS_TO_IDLE if any(other.is_idle for other in others) else _MOST_YIELDS)

    def _take(self, accepted: socket.socket) -> None:
        # Counted here and not when its protocol learns of it, turns of the loop later: until then the other workers,
        # and this one, would still believe the old number.
        self._slot.cells[Cell.CONNECTIONS] += 1
        self._connecting += 1
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Without it the kernel takes megabytes for a client that does not read, before we hear of it.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _MOST_UNSENT_BYTES)
        task = self._loop.create_task(self._connect(accepted))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _connect(self, accepted: socket.socket) -> None:
        settings = self._settings
        connection = Connection(
            self._config,
            self._state,
            self._slot,
            self._metrics,
            settings,
            self._max_body_bytes,
            self._speaker,
        )
        patience = settings.head_seconds if self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=patience
            )
        except (OSError, ssl.SSLError) as error:
            log.debug("a connection failed in its handshake: %s", error)
            if not connection.was_made:  # else it uncounts itself
                self._slot.cells[Cell.CONNECTIONS] -= 1
            accepted.close()
        finally:
            self._connecting -= 1
        if self._draining:  # it was accepted just before: it gets its answer like the others
            connection.retire()

    # ---- upkeep ----

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._set_date()
            self._sweep_connections(self._settings.keep_alive_seconds)

    def _sweep_connections(self, idle_seconds: float) -> None:
        now = time.monotonic()
        for connection in list(self.connections):
            connection.sweep(now, idle_seconds)

    def _set_date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]

    # ---- the end ----

    def stop_accepting(self) -> None:
        self._accepting = False
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()

    async def drain(self, seconds: float) -> int:
        """Let running requests finish, for `seconds` at most. Returns how many had not."""
        began = time.monotonic()
        self._draining = True
        for connection in list(self.connections):
            connection.retire()
        while time.monotonic() < began + seconds:
            grace = _RETIRED_IDLE_SECONDS if self._board.is_draining else _REPLACED_IDLE_SECONDS
            is_connecting = self._connecting and time.monotonic() < began + grace
            if not (self.connections or is_connecting):
                break
            self._sweep_connections(grace)
            await asyncio.sleep(0.02)
        return sum(connection.is_busy for connection in self.connections)

    async def close(self) -> None:
        """Whatever is left: its transport is closed, its task cancelled."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        for connection in list(self.connections):
            connection.transport.close()
        tasks = list(self._state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

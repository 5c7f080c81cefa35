"""An API server's tie to a core on another machine: opened, kept alive, missed when it is silent, opened again.

A network loses a peer without a word, so both ends send heartbeats, and the client's requests end when the core's have
stayed away. A socket serves for one connection. What ended with the old one is never sent again: only the client knows
whether it may be.
"""

import asyncio
import logging
import random

from engine_bridge.client import EngineClient
from engine_bridge.transport import ClientKeys

_BEAT_SECONDS = 0.3
_LATE_SECONDS = 1.0  # if a tick comes later than this after the last one, we stood still ourselves
_FIRST_RETRY_SECONDS = 0.1
_LAST_RETRY_SECONDS = 2.0

log = logging.getLogger("engine_bridge.link")


class Link:
    """Call `tick` several times a second, on the client's loop. `silence_seconds` without a heartbeat end the link."""

    def __init__(self, client: EngineClient, address: str, keys: ClientKeys | None, silence_seconds: float) -> None:
        self._client = client
        self._address = address
        self._keys = keys
        self._silence_seconds = silence_seconds
        self._loop = asyncio.get_running_loop()
        self._last_tick = self._loop.time()
        self._heard_or_excused = self._last_tick  # the core, or the opening, or our own standing still
        self._last_heartbeat: object = None
        self._next_beat = 0.0
        self._was_open = False
        self._retry_at = 0.0
        self._retry_seconds = _FIRST_RETRY_SECONDS
        self._said: str | None = None

    def tick(self) -> None:
        now = self._loop.time()
        if now - self._last_tick > _LATE_SECONDS:
            self._heard_or_excused = now  # what the core said meanwhile waits in the socket
        self._last_tick = now
        client = self._client
        if client.has_socket:
            self._keep(now)
        elif self._was_open:
            self._note_loss(now)
        elif now >= self._retry_at and client.rejection is None:
            self._open(now)

    def _open(self, now: float) -> None:
        self._client.connect_remote(self._address, self._keys, self._silence_seconds)
        self._was_open = True
        self._heard_or_excused = now
        self._next_beat = now + _BEAT_SECONDS

    def _keep(self, now: float) -> None:
        client = self._client
        if client.heartbeat is not self._last_heartbeat:
            self._last_heartbeat = client.heartbeat
            self._heard_or_excused = now
        if client.epoch and self._said != "":
            log.info("connected to the engine core at %s (epoch %d)", self._address, client.epoch)
            self._said = ""
            self._retry_seconds = _FIRST_RETRY_SECONDS
        if now - self._heard_or_excused > self._silence_seconds:
            client.lose(f"nothing heard for {self._silence_seconds:g} s")
        elif now >= self._next_beat:
            self._next_beat = now + _BEAT_SECONDS
            client.beat()

    def _note_loss(self, now: float) -> None:
        """Once for each reason: an engine that is away for an hour is one line in the log."""
        self._was_open = False
        reason = self._client.lost_reason
        if reason != self._said:
            log.warning("no engine core at %s: %s; trying again", self._address, reason)
            self._said = reason
        # Spread out, or all API servers of all pools would come back in the same instant.
        self._retry_at = now + self._retry_seconds * random.uniform(0.5, 1.0)
        self._retry_seconds = min(2 * self._retry_seconds, _LAST_RETRY_SECONDS)

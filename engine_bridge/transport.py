"""ZMQ: the sockets, their options, and a raw socket on an asyncio loop. The only file that says `zmq.`.

`zmq.asyncio` costs a future and a task step a message; a raw socket whose descriptor the loop watches costs one
callback a burst. The descriptor is edge-triggered: it becomes readable once when something happened, so after every
send and every receive the socket itself must be asked again whether there is more.
"""

import asyncio
import logging
from collections.abc import Callable

import zmq

_HIGH_WATER_MARK = 100_000  # messages; a peer this far behind is as good as gone
_READABLE = int(zmq.POLLIN)  # a plain int: `&` with the enum costs as much as asking the socket
_BURST = 256  # messages handled in one turn of the loop before others get theirs

log = logging.getLogger("engine_bridge.transport")

ZContext = zmq.Context[zmq.Socket[bytes]]
ZSocket = zmq.Socket[bytes]


class PeerGone(Exception):
    """The peer is not connected, or so far behind that its queue is full."""


class CannotBind(Exception):
    """The address cannot be bound; the message is one line."""


def make_context() -> ZContext:
    """One a process, made after the fork: it starts a thread."""
    return zmq.Context[zmq.Socket[bytes]]()


def router(context: ZContext, address: str) -> ZSocket:
    """The core's end. Sending to a peer that is gone fails instead of vanishing (ROUTER_MANDATORY). Raises CannotBind.

    A peer that connects anew under its old identity takes it over (ROUTER_HANDOVER): without that it would be ignored,
    silently and for ever, whenever its new connection is seen before the end of the old one.
    """
    socket = context.socket(zmq.ROUTER)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.ROUTER_HANDOVER, 1)
    _set_common(socket)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        socket.close()
        raise CannotBind(f"cannot bind {address}: {error}") from error
    return socket


def dealer(context: ZContext, address: str, identity: bytes) -> ZSocket:
    """An API server's end. Connecting succeeds before the core binds; ZMQ retries in its own thread."""
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.IDENTITY, identity)
    socket.set(zmq.RECONNECT_IVL, 20)
    socket.set(zmq.RECONNECT_IVL_MAX, 200)
    _set_common(socket)
    socket.connect(address)
    return socket


def _set_common(socket: ZSocket) -> None:
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, _HIGH_WATER_MARK)
    socket.set(zmq.RCVHWM, _HIGH_WATER_MARK)


class Channel:
    """A socket on a loop: `send` now, `handle` called with each received message's frames."""

    def __init__(self, socket: ZSocket, handle: Callable[[list[bytes]], None]) -> None:
        self._socket = socket
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.get(zmq.FD))
        self._closed = False
        self._loop.add_reader(self._descriptor, self._receive)
        self._loop.call_soon(self._receive)

    def send(self, frames: list[bytes]) -> None:
        """Raises PeerGone; never blocks."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise PeerGone(str(error)) from error
        if self._socket.get(zmq.EVENTS) & _READABLE:  # pyright: ignore[reportOperatorIssue]  # as above
            self._loop.call_soon(self._receive)

    def _receive(self) -> None:
        for _ in range(_BURST):
            if self._closed:
                return
            if not self._socket.get(zmq.EVENTS) & _READABLE:  # pyright: ignore[reportOperatorIssue]  # typed as int | bytes
                return  # asking costs a quarter of catching Again
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
            try:
                self._handle(frames)
            except Exception:
                # Left to the loop, it would end this burst, and the edge that announced the rest has been used up.
                log.exception("a message could not be handled")
        self._loop.call_soon(self._receive)

    def close(self, linger_seconds: float = 0.0) -> None:
        """Stop watching and close the socket; what is unsent may still leave for so long, while the context ends."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            self._socket.close(linger=int(linger_seconds * 1000))

"""ZMQ: the sockets, their options, and a raw socket on an asyncio loop. The only file that says `zmq.`.

`zmq.asyncio` costs a future and a task step a message; a raw socket whose descriptor the loop watches costs one
callback a burst. The descriptor is edge-triggered: it becomes readable once when something happened, so after every
send and every receive the socket itself must be asked again whether there is more.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from engine_bridge.address import is_tcp

MAX_MESSAGE_BYTES = 64 << 20
"""Over tcp://, to the core: API servers send nothing larger, and what is announced as larger is not awaited."""

_HIGH_WATER_MARK = 100_000  # messages; a peer this far behind is as good as gone
_READABLE = int(zmq.POLLIN)  # a plain int: `&` with the enum costs as much as asking the socket
_REMOTE_HIGH_WATER_MARK = 10_000  # a dead link fills until its silence is noticed, and no further than this
_BURST = 256  # messages handled in one turn of the loop before others get theirs
_HANDSHAKE_MS = 5_000  # a stranger who connects and says nothing is cut; a lost segment or two of a peer's is not
_CONNECT_MS = 3_000  # the kernel would try for two minutes; one lost SYN is repeated after 1 s
_PING_MS = 1_000

log = logging.getLogger("engine_bridge.transport")

ZContext = zmq.Context[zmq.Socket[bytes]]
ZSocket = zmq.Socket[bytes]


class PeerGone(Exception):
    """The peer is not connected, or so far behind (`is_behind`) that its queue is full."""

    def __init__(self, message: str, *, is_behind: bool) -> None:
        super().__init__(message)
        self.is_behind = is_behind


class CannotBind(Exception):
    """The address cannot be bound; the message is one line."""


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """The core's, as printable text (Z85)."""

    secret: bytes


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """An API server's pair, and the key by which it knows the core; printable text (Z85)."""

    public: bytes
    secret: bytes
    server: bytes


def make_key_pair() -> tuple[bytes, bytes]:
    """A new public and a new secret key."""
    return zmq.curve_keypair()


def public_key_of(secret: bytes) -> bytes:
    return zmq.curve_public(secret)


def printable_key(key: bytes) -> bytes:
    """The 32 bytes of a key as its 40 letters."""
    return z85.encode(key)


def make_context() -> ZContext:
    """One a process, made after the fork: it starts a thread."""
    return zmq.Context[zmq.Socket[bytes]]()


def router(
    context: ZContext, address: str, keys: ServerKeys | None = None, *, silence_seconds: float = 10.0
) -> ZSocket:
    """The core's end. Sending to a peer that is gone fails instead of vanishing (ROUTER_MANDATORY). Raises CannotBind.

    A peer that connects anew under its old identity takes it over (ROUTER_HANDOVER): without that it would be ignored,
    silently and for ever, whenever its new connection is seen before the end of the old one. With `keys`, whoever
    connects must know the public one, and a Gate must let him in. `silence_seconds`, over tcp://: a connection on which
    nothing moves for so long is closed.
    """
    socket = context.socket(zmq.ROUTER)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.ROUTER_HANDOVER, 1)
    _set_common(socket)
    if is_tcp(address):
        _set_tcp(socket, address, silence_seconds)
        socket.set(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    if keys is not None:
        socket.set(zmq.CURVE_SERVER, 1)
        socket.set(zmq.CURVE_SECRETKEY, keys.secret)
        socket.set(zmq.ZAP_DOMAIN, b"engine")
        socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # where nobody answers for the allow-list, nobody connects
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


def remote_dealer(
    context: ZContext,
    address: str,
    identity: bytes,
    keys: ClientKeys | None,
    *,
    silence_seconds: float,
    on_end: Callable[[str], None],
) -> "tuple[ZSocket, Channel]":
    """An API server's end of one connection over tcp://, and who watches it: he calls `on_end` with the reason.

    ZMQ must not try again by itself here: it would come back in silence, with what was under way lost on both sides and
    nobody told. What comes from the core has no limit of size: it is known by its key, and what it sends was asked for.
    """
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.IDENTITY, identity)
    socket.set(zmq.RECONNECT_IVL, -1)
    socket.set(zmq.CONNECT_TIMEOUT, _CONNECT_MS)
    _set_common(socket)
    _set_tcp(socket, address, silence_seconds)
    if keys is not None:
        socket.set(zmq.CURVE_PUBLICKEY, keys.public)
        socket.set(zmq.CURVE_SECRETKEY, keys.secret)
        socket.set(zmq.CURVE_SERVERKEY, keys.server)
    watch = _watch(context, socket, on_end)
    socket.connect(address)
    return socket, watch


def authenticator(context: ZContext) -> ZSocket:
    """Where ZMQ asks, at each handshake of this context, whether a key may connect."""
    socket = context.socket(zmq.ROUTER)
    _set_common(socket)
    socket.bind("inproc://zeromq.zap.01")
    return socket


def address_of(socket: ZSocket) -> str:
    """Where it is bound; the real port, also where port 0 was asked for."""
    endpoint = socket.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()


def _set_common(socket: ZSocket) -> None:
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, _HIGH_WATER_MARK)
    socket.set(zmq.RCVHWM, _HIGH_WATER_MARK)


def _set_tcp(socket: ZSocket, address: str, silence_seconds: float) -> None:
    """What a network needs and a directory does not.

    ZMQ's own pings stand for TCP's keepalive: they begin after 1 s and not after two hours, they notice a peer that is
    stopped and not only one that is gone, and they keep the entry in a firewall's table. They end the connection, which
    frees what waits for it; whether the peer's loop turns is asked above, by heartbeats.
    """
    socket.set(zmq.SNDHWM, _REMOTE_HIGH_WATER_MARK)
    socket.set(zmq.RCVHWM, _REMOTE_HIGH_WATER_MARK)
    socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.set(zmq.HEARTBEAT_IVL, _PING_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, int(silence_seconds * 1000))
    if "[" in address:
        socket.set(zmq.IPV6, 1)


def _watch(context: ZContext, socket: ZSocket, on_end: Callable[[str], None]) -> "Channel":
    """Call `on_end` when the connection has ended, or could not be made."""
    met = False

    def handle(frames: list[bytes]) -> None:
        nonlocal met
        event = parse_monitor_message(frames)["event"]
        match event:
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                met = True
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                on_end("it does not let this key in: is this pool's .public file among the engine's clients?")
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                on_end(_NO_HANDSHAKE)
            case zmq.EVENT_DISCONNECTED:
                on_end("the connection was cut" if met else _NO_HANDSHAKE)
            case zmq.EVENT_CLOSED | zmq.EVENT_CONNECT_RETRIED:
                on_end("nobody can be reached there: does the engine run, and do firewalls let it through?")
            case _:
                pass

    # pyzmq's own name for it comes from the descriptor, which the next socket may have before this one is quite gone.
    place = f"inproc://watch.{next(_watch_numbers)}"
    socket.monitor(place, zmq.EVENT_ALL)
    events = context.socket(zmq.PAIR)
    _set_common(events)
    events.connect(place)
    return Channel(events, handle)


_watch_numbers = itertools.count()
_NO_HANDSHAKE = (
    "the handshake failed. Does an engine listen there (a forwarder or proxy may answer for one that does not)? "
    "Do both ends use keys, and is server.public here the engine's? Is this pool's .public file among the engine's "
    "clients? The engine's log has a line for a key that it refuses"
)


Receive = Callable[[ZSocket], list[bytes]]
"""Takes the next message off a socket. Raises zmq.Again if there is none."""


def all_frames(socket: ZSocket) -> list[bytes]:
    return socket.recv_multipart(zmq.NOBLOCK)


def one_frame(socket: ZSocket) -> list[bytes]:
    """Of a peer that sends messages of a single frame: nobody asks whether there is another. One that does not keep to
    it is handled frame by frame."""
    return [socket.recv(zmq.NOBLOCK)]


def with_key(socket: ZSocket) -> list[bytes]:
    """All frames, and behind them the key (printable) by which the Gate let the sender in. For sockets that a Gate
    guards: on others no message has one."""
    frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
    key = frames[-1].get("User-Id")
    assert isinstance(key, str)
    return [*(frame.bytes for frame in frames), key.encode()]


class Channel:
    """A socket on a loop: `send` now, `handle` called with each received message's frames, as `receive` gives them."""

    def __init__(
        self, socket: ZSocket, handle: Callable[[list[bytes]], None], *, receive: Receive = all_frames
    ) -> None:
        self._socket = socket
        self._handle = handle
        self._take = receive
        self._loop = asyncio.get_running_loop()
        self._descriptor = int(socket.get(zmq.FD))
        self._closed = False
        self._loop.add_reader(self._descriptor, self._receive)
        self._loop.call_soon(self._receive)

    def send(self, frames: list[bytes]) -> None:
        """Raises PeerGone; never blocks."""
        try:
            if len(frames) == 1:
                self._socket.send(frames[0], zmq.NOBLOCK)
            else:
                self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise PeerGone(str(error), is_behind=error.errno == zmq.EAGAIN) from error
        if self._socket.get(zmq.EVENTS) & _READABLE:  # pyright: ignore[reportOperatorIssue]  # typed as int | bytes
            self._loop.call_soon(self._receive)

    def _receive(self) -> None:
        for number in range(_BURST):
            if self._closed:
                return
            # There is a reason for the first, and asking costs as much as taking; after that there is most often no
            # more, and catching Again costs four times as much as asking.
            if number and not self._socket.get(zmq.EVENTS) & _READABLE:  # pyright: ignore[reportOperatorIssue]  # typed as int | bytes
                return
            try:
                frames = self._take(self._socket)
            except zmq.Again:
                return
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

"""Who may connect to the core: the answers to ZMQ's own question (ZAP, RFC 27), given on the core's loop.

ZMQ asks after it has proved that a peer holds the secret half of the key that it shows, and before anything that the
peer says is let through. Whoever does not get as far (another protocol, no key, the wrong server's key) is cut by ZMQ
itself. A refusal is logged, but not as often as strangers like.
"""

import asyncio
import logging

from engine_bridge.keys import KeyProblem
from engine_bridge.members import Allowed
from engine_bridge.transport import Channel, PeerGone, ZContext, authenticator, printable_key

_VERSION = b"1.0"
_QUIET_SECONDS = 10.0  # between two lines about refusals

log = logging.getLogger("engine_bridge.gate")


class Gate:
    """To be made before the socket that it guards binds. Without it, ZMQ refuses everybody.

    The list is read at every handshake. What ZMQ calls the user's id is the key: each message then brings it.
    """

    def __init__(self, context: ZContext, allowed: Allowed) -> None:
        self._allowed = allowed
        self._channel = Channel(authenticator(context), self._on_question)
        self.refused = 0
        self._unsaid = 0
        self._said_at = -_QUIET_SECONDS

    def _on_question(self, frames: list[bytes]) -> None:
        asker, _, _, question_id, _, address, _, mechanism, *credentials = frames
        name = self._name_of(mechanism, credentials)
        if name is None:
            self._complain(address, credentials)
            answer = [b"400", b"this key may not connect", b""]
        else:
            log.info("%s connects from %s", name, address.decode(errors="replace"))
            answer = [b"200", b"", printable_key(credentials[0])]
        try:
            self._channel.send([asker, b"", _VERSION, question_id, *answer, b""])
        except PeerGone:
            log.debug("whoever wanted to connect has given up")

    def _name_of(self, mechanism: bytes, credentials: list[bytes]) -> str | None:
        if mechanism != b"CURVE" or len(credentials) != 1:
            return None
        try:
            return self._allowed.names().get(printable_key(credentials[0]))
        except KeyProblem as error:
            log.error("nobody may connect: %s", error)
            return None

    def _complain(self, address: bytes, credentials: list[bytes]) -> None:
        self.refused += 1
        self._unsaid += 1
        now = asyncio.get_running_loop().time()
        if now - self._said_at < _QUIET_SECONDS:
            return
        key = printable_key(credentials[0]).decode() if credentials else "no key"
        log.warning(
            "refused %d connections, the last from %s with the key %s",
            self._unsaid,
            address.decode(errors="replace"),
            key,
        )
        self._said_at, self._unsaid = now, 0

    def close(self) -> None:
        self._channel.close()

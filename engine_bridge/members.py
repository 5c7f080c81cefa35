"""By which key each API server on another machine has come in, and whether that key may still be used.

The Gate is asked at the handshake alone, and a connection may last for weeks. So the core asks again: each message
brings the key of its connection (the Gate gave it to ZMQ, which nobody at the other end can change), and about once a
second the list is looked at.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Protocol

from engine_bridge.keys import KeyProblem

log = logging.getLogger("engine_bridge.members")


class Allowed(Protocol):
    """The keys that may connect, with a name for each. Raises KeyProblem where that cannot be known now."""

    def names(self) -> Mapping[bytes, str]: ...


class Members:
    """`hear` each message, `removed` about once a second.

    A key is out when two looks in a row have not found it: a file that is being written anew is empty for a moment. And
    a list that cannot be read takes nobody's place away; the Gate lets nobody new in meanwhile.
    """

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._keys: dict[bytes, bytes] = {}  # by identity
        self._missing: frozenset[bytes] = frozenset()
        self._out: frozenset[bytes] = frozenset()
        self._said = ""

    def hear(self, identity: bytes, key: bytes) -> bool:
        """Whether what this one says may be heeded."""
        self._keys[identity] = key
        return key not in self._out

    def forget(self, identity: bytes) -> None:
        """It is gone."""
        self._keys.pop(identity, None)

    def removed(self) -> Iterator[bytes]:
        """The identities whose key has left the list, once each time that it does."""
        try:
            names = self._allowed.names()
        except KeyProblem as error:
            self._complain(str(error))
            return
        self._said = ""
        missing = frozenset(key for key in self._keys.values() if key not in names)
        before, gone = self._out, missing & self._missing
        self._missing = missing
        # Not only what is missing among those that are heard: who is silent for a while is not in again by it.
        self._out = frozenset(key for key in before | gone if key not in names)
        yield from [identity for identity, key in self._keys.items() if key in self._out - before]

    def _complain(self, reason: str) -> None:
        """Once for each reason: it is looked at every second."""
        if reason != self._said:
            log.error("who may connect is not known now, so those who are connected stay: %s", reason)
            self._said = reason

"""The core's address, as a person writes it: `ipc://PATH`, or `tcp://HOST:PORT` for API servers on other machines."""

import ipaddress
from dataclasses import dataclass

SCHEME = "tcp://"


class BadAddress(Exception):
    """It cannot be used so; the message is one line for the person at the terminal."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """Where a core listens, or is to be found."""

    host: str  # a name, a number, or * for every IPv4 address of the machine
    port: int

    @classmethod
    def parse(cls, text: str) -> "TcpAddress":
        """Raises BadAddress."""
        host, colon, port = text.removeprefix(SCHEME).rpartition(":")
        if not text.startswith(SCHEME) or not colon or not host or not port.isascii() or not port.isdigit():
            raise BadAddress(f"{text!r} is not an address: it must be tcp://HOST:PORT")
        if int(port) > 65_535:
            raise BadAddress(f"{text!r} is not an address: a port is at most 65535")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether what is said there stays on this machine."""
        if self.host == "localhost":
            return True
        number = self._number
        return number is not None and number.is_loopback

    @property
    def can_be_bound(self) -> bool:
        """ZMQ binds numbers, not names."""
        return self.host in ("*", "localhost") or self._number is not None

    @property
    def is_ipv6(self) -> bool:
        return ":" in self.host

    @property
    def _number(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{SCHEME}[{self.host}]:{self.port}" if self.is_ipv6 else f"{SCHEME}{self.host}:{self.port}"


def is_tcp(address: str) -> bool:
    return address.startswith(SCHEME)


def to_listen(text: str, *, with_keys: bool) -> str:
    """Where a core may bind. Raises BadAddress, also where it would be open to strangers."""
    address = TcpAddress.parse(text)
    if not address.can_be_bound:
        raise BadAddress(f"{text}: give a number of this machine, or * for all of them, not a name")
    if not with_keys and not address.is_loopback:
        raise BadAddress(
            f"{text} can be reached from other machines, so it needs --keys DIR (apiserver keys makes them)"
        )
    host = "127.0.0.1" if address.host == "localhost" else address.host
    return str(TcpAddress(host, address.port))


def to_connect(text: str, *, with_keys: bool) -> str:
    """Where a core may be looked for. Raises BadAddress, also where strangers could listen to what is said."""
    address = TcpAddress.parse(text)
    if address.host == "*" or address.port == 0:
        raise BadAddress(f"{text} is where a core may listen; give the one host and port to connect to")
    if not with_keys and not address.is_loopback:
        raise BadAddress(f"{text} is another machine, so it needs --keys DIR (apiserver keys makes them)")
    return str(address)

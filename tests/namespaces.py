"""Machines of our own: network namespaces joined by virtual cables, which can be pulled. They end with their holders.

Root may make them; anybody else needs unprivileged user namespaces, which some systems forbid.
"""

import contextlib
import functools
import subprocess
from collections.abc import Iterator, Sequence

_MAKE = "ip link set lo up && ip link add near type veth peer name far"
_AS_OWNER = ("--user", "--map-root-user")
_INTO_OWNER = ("--user", "--preserve-credentials")


@functools.cache
def _tried(*owner: str) -> str | None:
    """Why it cannot be done so; None if it can."""
    command = ["unshare", *owner, "--net", "sh", "-c", _MAKE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        return "there is no unshare (util-linux) here"
    return None if done.returncode == 0 else f"not permitted here: {done.stderr.strip() or done.returncode}"


def why_not() -> str | None:
    """What stands in the way of namespaces here; None if nothing does."""
    return _tried() and _tried(*_AS_OWNER)


def _needs_owner() -> bool:
    """Whether it takes a user namespace, in which we are root, around the network's."""
    return _tried() is not None


class Machine:
    """One namespace. `inside` is the command that becomes another one in it."""

    def __init__(self, holder: subprocess.Popen[bytes]) -> None:
        self.pid = holder.pid
        owner = _INTO_OWNER if _needs_owner() else ()
        self.inside: Sequence[str] = ["nsenter", "--target", str(holder.pid), *owner, "--net"]

    def run(self, command: str) -> None:
        subprocess.run([*self.inside, "sh", "-e", "-c", command], check=True, capture_output=True, timeout=20)


@contextlib.contextmanager
def machine(beside: Machine | None = None) -> Iterator[Machine]:
    """A new one, with nothing but its loopback; `beside` another if cables are to join them."""
    prefix: tuple[str, ...] = ()
    owner: tuple[str, ...] = ()
    if _needs_owner():
        if beside is None:
            owner = _AS_OWNER
        else:
            prefix = ("nsenter", "--target", str(beside.pid), *_INTO_OWNER)
    script = "ip link set lo up && echo up && exec sleep infinity"
    command = [*prefix, "unshare", *owner, "--net", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"up\n"
            yield Machine(holder)
        finally:
            holder.kill()


class Cable:
    """Between two machines. `near` and `far` are the addresses of its ends."""

    def __init__(self, here: Machine, there: Machine, number: int) -> None:
        self._here = here
        self._name = f"cable{number}"
        self.near, self.far = f"10.77.{number}.1", f"10.77.{number}.2"
        here.run(
            f"ip link add {self._name} type veth peer name eth0 netns {there.pid}; "
            f"ip address add {self.near}/24 dev {self._name}; ip link set {self._name} up"
        )
        there.run(f"ip address add {self.far}/24 dev eth0; ip link set eth0 up")

    def pull(self) -> None:
        """Nobody is told: no end of a connection, no reset."""
        self._here.run(f"ip link set {self._name} down")

    def plug_in(self) -> None:
        self._here.run(f"ip link set {self._name} up")

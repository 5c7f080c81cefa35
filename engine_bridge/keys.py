"""CURVE keys as files: made, read, and checked for who else can read them.

`DIR/engine` goes to the engine's node: its secret key, and `clients/`, the public keys of those who may connect.
`DIR/NAME` goes to the node of that pool of API servers: its own pair, and the engine's public key. Removing a file from
`clients/` shuts that pool out within seconds, also from open connections; adding one lets it in; neither needs a
restart.
"""

import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine_bridge.transport import ClientKeys, ServerKeys, make_key_pair, public_key_of

ENGINE = "engine"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
log = logging.getLogger("engine_bridge.keys")

_KEY = re.compile(rb"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")  # Z85


class KeyProblem(Exception):
    """Keys cannot be made or used; the message is one line for the person at the terminal."""


# ---- making ---------------------------------------------------------------------------------------------------------


def make_keys(directory: Path, clients: Sequence[str]) -> list[Path]:
    """Make a key pair for each client, and one for the engine if there is none yet; returns the directories made.

    Nothing that exists is touched: where a client's directory is there, nothing at all is made. Raises KeyProblem.
    """
    for name in clients:
        if not _NAME.fullmatch(name) or name == ENGINE:
            raise KeyProblem(f"{name!r} cannot be a client's name: letters, digits, - _ . only, and not '{ENGINE}'")
        for path in (directory / name, directory / ENGINE / "clients" / f"{name}.public"):
            if path.exists():
                raise KeyProblem(f"{path} exists, and keys are never overwritten: choose another name, or remove it")
    made: list[Path] = []
    try:
        if not (directory / ENGINE).exists():
            made.append(_make_engine(directory / ENGINE))
        server = _read(directory / ENGINE / "server.public")
        made += [_make_client(directory, name, server) for name in dict.fromkeys(clients)]
    except OSError as error:
        raise KeyProblem(f"cannot write keys to {directory}: {error}") from error
    return made


def _make_engine(directory: Path) -> Path:
    (directory / "clients").mkdir(parents=True, mode=0o700)
    directory.chmod(0o700)
    public, secret = make_key_pair()
    _write(directory / "server.secret", secret, "the engine's secret key; it never leaves the engine's node", 0o600)
    _write(directory / "server.public", public, "the engine's public key", 0o644)
    return directory


def _make_client(directory: Path, name: str, server: bytes) -> Path:
    own = directory / name
    own.mkdir(mode=0o700)
    public, secret = make_key_pair()
    _write(own / "client.secret", secret, f"the secret key of {name}; it never leaves its node", 0o600)
    _write(own / "client.public", public, f"the public key of {name}", 0o644)
    _write(own / "server.public", server, "the engine's public key", 0o644)
    _write(directory / ENGINE / "clients" / f"{name}.public", public, f"the public key of {name}", 0o644)
    return own


def _write(path: Path, key: bytes, comment: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)  # whatever the umask
        file.write(b"# " + comment.encode() + b"\n" + key + b"\n")


# ---- reading --------------------------------------------------------------------------------------------------------


def read_server_keys(directory: Path) -> ServerKeys:
    """For the engine's node. Raises KeyProblem."""
    return ServerKeys(_read_secret(directory / "server.secret"))


def read_client_keys(directory: Path) -> ClientKeys:
    """For a pool of API servers. Raises KeyProblem."""
    secret = _read_secret(directory / "client.secret")
    return ClientKeys(public_key_of(secret), secret, _read(directory / "server.public"))


def _read_secret(path: Path) -> bytes:
    key = _read(path)
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        raise KeyProblem(f"{path} can be read by everybody on this machine: chmod 600 {path}")
    return key


def _read(path: Path) -> bytes:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise KeyProblem(f"cannot read the key {path}: {os.strerror(error.errno or 0)}") from error
    keys = [line.strip() for line in lines if line.strip() and not line.startswith(b"# ")]
    if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
        raise KeyProblem(f"{path} does not hold a key (made by apiserver keys)")
    return keys[0]


def _state(entry: "os.DirEntry[str]") -> tuple[int, int, int]:
    """What changes when the file does; nothing of one that is gone in this moment, or leads nowhere."""
    try:
        status = entry.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size


@dataclass
class AllowList:
    """The public keys in a directory, by key; read again when a file of it has changed, also in its place: a key that
    was replaced must not get in any more."""

    directory: Path

    def __post_init__(self) -> None:
        self._seen: object = None
        self._names: Mapping[bytes, str] = {}

    def names(self) -> Mapping[bytes, str]:
        """Who may connect: the name that each key's file has. Raises KeyProblem."""
        try:
            with os.scandir(self.directory) as entries:
                seen = {entry.name: _state(entry) for entry in entries}
        except OSError as error:
            raise KeyProblem(f"cannot read {self.directory}: {os.strerror(error.errno or 0)}") from error
        if seen != self._seen:
            self._seen = seen
            self._names = dict(self._read_all())
        return self._names

    def _read_all(self) -> Iterator[tuple[bytes, str]]:
        for path in sorted(self.directory.glob("*.public")):
            try:
                yield _read(path), path.stem
            except KeyProblem as error:  # maybe half copied, so it is looked at again; the others are not to blame
                self._seen = None
                log.error("%s", error)

"""The one listening socket, and what protects it."""

import errno
import os
import socket
import ssl
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from apiserver.config import ListenSettings
from apiserver.launch_error import LaunchError

_WHO_HAS_IT = "; choose another --port, or see who has it: ss -ltnp"


@contextmanager
def listening(listen: ListenSettings) -> Generator[socket.socket]:
    """As `bind`; the socket's file, if it has one, goes at the end, unless another pool has taken the path meanwhile:
    while we drain, our file looks abandoned. Raises LaunchError."""
    with bind(listen) as listener:
        own = _file_of(listen.uds)
        try:
            yield listener
        finally:
            if listen.uds is not None and own == _file_of(listen.uds):
                with suppress(OSError):  # gone, or not ours to remove any more
                    os.unlink(listen.uds)


def _file_of(path: str | None) -> tuple[int, int] | None:
    """Which file is there. Its number is nobody else's as long as a socket is bound to it."""
    if path is None:
        return None
    with suppress(OSError):
        status = os.lstat(path)
        return status.st_dev, status.st_ino
    return None


def bind(listen: ListenSettings) -> socket.socket:
    """The one listening socket. Taken before anything slow, so a port in use fails in the first second."""
    family = socket.AF_UNIX if listen.uds is not None else socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if listen.uds is not None:
            _bind_unix(listener, listen.uds, listen.uds_mode)
        else:
            # REUSEADDR for a quick restart; never REUSEPORT, with which a second pool would take half the traffic.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((listen.host, listen.port))
        listener.listen(listen.backlog)
    except (
        OSError,
        OverflowError,
    ) as error:  # a name that does not resolve, a path that is too long, a port beyond all
        listener.close()
        where = listen.uds or f"{listen.host}:{listen.port}"
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            why += _WHO_HAS_IT if listen.uds is None else "; another --uds, or see who has it"
        raise LaunchError(f"cannot listen on {where}: {why}") from error
    return listener


def _bind_unix(listener: socket.socket, path: str, mode: int | None) -> None:
    """With a mode, the file has it from its first moment on; no one else can connect before."""
    if Path(path).is_socket() and _is_abandoned(path):
        Path(path).unlink()
    if mode is None:
        listener.bind(path)
        return
    before = os.umask(0o777 & ~mode)
    try:
        listener.bind(path)
    finally:
        os.umask(before)


def _is_abandoned(path: str) -> bool:
    """Left by a pool that was killed: nobody listens. One that may not be asked is somebody's."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # one whose queue is full is alive
        return probe.connect_ex(path) == errno.ECONNREFUSED


def port_of(listener: socket.socket) -> int:
    """The real one, also where port 0 was asked for."""
    return 0 if listener.family == socket.AF_UNIX else listener.getsockname()[1]


def make_tls(listen: ListenSettings) -> ssl.SSLContext | None:
    if listen.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Never without a password: OpenSSL would ask for it at the terminal.
        context.load_cert_chain(listen.ssl_certfile, listen.ssl_keyfile, listen.ssl_keyfile_password or "")
        if listen.ssl_ca_certs is not None:
            context.load_verify_locations(listen.ssl_ca_certs)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise LaunchError(f"TLS: {_what_is_wrong(listen, error)}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context


def _what_is_wrong(listen: ListenSettings, error: OSError) -> str:
    """OpenSSL names neither file nor cause: say the first file that cannot be read, or all and what they must be."""
    files = {
        "--ssl-certfile": listen.ssl_certfile,
        "--ssl-keyfile": listen.ssl_keyfile,
        "--ssl-ca-certs": listen.ssl_ca_certs,
    }
    given = {flag: path for flag, path in files.items() if path is not None}
    for flag, path in given.items():
        try:
            Path(path).open("rb").close()
        except OSError as unreadable:
            return f"{flag} {path}: {unreadable.strerror}"
    all_files = ", ".join(f"{flag} {path}" for flag, path in given.items())
    return f"{error}: {all_files} must be PEM files, the key the certificate's own (and --ssl-keyfile-password its own)"

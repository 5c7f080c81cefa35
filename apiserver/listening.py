"""The one listening socket, and what protects it."""

import os
import socket
import ssl
from pathlib import Path

from apiserver.config import ListenSettings
from apiserver.launch_error import LaunchError


def bind(listen: ListenSettings) -> socket.socket:
    """The one listening socket. Taken before anything slow, so a port in use fails in the first second."""
    try:
        if listen.uds is not None:
            return _bind_unix(listen.uds, listen.backlog)
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        # REUSEADDR for a quick restart; never REUSEPORT, with which a second pool would take half the traffic.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((listen.host, listen.port))
        listener.listen(listen.backlog)
        return listener
    except OSError as error:
        where = listen.uds or f"{listen.host}:{listen.port}"
        raise LaunchError(f"cannot listen on {where}: {os.strerror(error.errno or 0)}") from error


def _bind_unix(path: str, backlog: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if Path(path).is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(path) != 0:
                Path(path).unlink()  # left by a pool that was killed
    listener.bind(path)
    listener.listen(backlog)
    return listener


def port_of(listener: socket.socket) -> int:
    """The real one, also where port 0 was asked for."""
    return 0 if listener.family == socket.AF_UNIX else listener.getsockname()[1]


def make_tls(listen: ListenSettings) -> ssl.SSLContext | None:
    if listen.ssl_certfile is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(listen.ssl_certfile, listen.ssl_keyfile, listen.ssl_keyfile_password)
        if listen.ssl_ca_certs is not None:
            context.load_verify_locations(listen.ssl_ca_certs)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise LaunchError(f"TLS: {error}") from error
    context.set_alpn_protocols(["http/1.1"])
    return context

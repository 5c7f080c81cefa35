"""The listening socket: a Unix socket's file, whose it is and who may use it; certificates that are broken."""

import os
import socket
import stat
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from apiserver.config import ListenSettings
from apiserver.launch_error import LaunchError
from apiserver.listening import bind, listening, make_tls, port_of
from tests.certificates import make_certificate


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


def connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return client.connect_ex(path) == 0


def mode_of(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666, 0o777])
def test_the_file_has_the_mode_that_was_asked_for(path: str, mode: int) -> None:
    before = os.umask(0o077)
    try:
        with bind(ListenSettings(uds=path, uds_mode=mode)):
            assert mode_of(path) == mode
            assert connects(path)
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(before)


def test_without_a_mode_the_umask_decides(path: str) -> None:
    before = os.umask(0o027)
    try:
        with bind(ListenSettings(uds=path)):
            assert mode_of(path) == 0o750
    finally:
        os.umask(before)


def test_a_file_that_a_killed_pool_left_is_taken_over(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(path)
    assert Path(path).is_socket()
    with bind(ListenSettings(uds=path)):
        assert connects(path)


def test_a_file_that_somebody_listens_at_is_left_alone(path: str) -> None:
    with bind(ListenSettings(uds=path)):
        with pytest.raises(LaunchError, match="in use; another --uds"):
            bind(ListenSettings(uds=path))
        assert connects(path)


def test_the_file_goes_with_the_socket(path: str) -> None:
    with listening(ListenSettings(uds=path)):
        assert connects(path)
    assert not Path(path).exists()


def test_the_file_of_the_next_pool_does_not_go_with_the_socket_of_one_that_drained(path: str) -> None:
    with ExitStack() as second:
        with listening(ListenSettings(uds=path)) as first:
            first.shutdown(socket.SHUT_RDWR)  # it drains: nobody can connect, and the file looks abandoned
            second.enter_context(listening(ListenSettings(uds=path)))
        assert connects(path)
    assert not Path(path).exists()


def test_a_file_that_is_no_socket_is_left_alone(path: str) -> None:
    Path(path).write_text("mine")
    with pytest.raises(LaunchError, match="in use"):
        bind(ListenSettings(uds=path, uds_mode=0o600))
    assert Path(path).read_text() == "mine"


def test_a_certificate_that_is_none_is_an_error_with_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "c.pem"
    file.write_text("nonsense")
    none = tmp_path / "none"
    for settings, why in (
        (ListenSettings(ssl_certfile=str(file), ssl_keyfile=str(file)), f"--ssl-keyfile {file} must be PEM files"),
        (ListenSettings(ssl_certfile=str(file), ssl_keyfile=str(none)), f"^TLS: --ssl-keyfile {none}: No such file"),
    ):
        with pytest.raises(LaunchError, match=why):
            make_tls(settings)


def test_a_key_with_a_password_is_never_asked_about_at_the_terminal(tmp_path: Path) -> None:
    made, locked = make_certificate(tmp_path, "a"), str(tmp_path / "locked.pem")
    lock = ["openssl", "pkcs8", "-topk8", "-in", made.key, "-out", locked, "-passout", "pass:secret"]
    subprocess.run(lock, check=True, capture_output=True)
    settings = ListenSettings(ssl_certfile=str(made.certificate), ssl_keyfile=locked, ssl_keyfile_password="secret")
    assert make_tls(settings) is not None
    for wrong in (None, "guess"):
        with pytest.raises(LaunchError, match="--ssl-keyfile-password"):
            make_tls(replace(settings, ssl_keyfile_password=wrong))


@pytest.mark.parametrize(
    ("listen", "why"),
    [
        (ListenSettings(host="no.such.host.invalid", port=0), "no.such.host.invalid:0: .*(known|resolution)"),
        (ListenSettings(host="127.0.0.1", port=70_000), "port must be 0-65535"),
        (ListenSettings(uds="/tmp/" + "x" * 200), "AF_UNIX path too long"),
    ],
)
def test_what_cannot_be_bound_is_one_line_that_says_why(listen: ListenSettings, why: str) -> None:
    with pytest.raises(LaunchError, match=why):
        bind(listen)


def test_ipv6_is_bound_again_at_once_while_a_client_of_before_has_not_closed() -> None:  # vllm#10012
    with bind(ListenSettings(host="::1", port=0)) as first:
        port = port_of(first)
        client = socket.create_connection(("::1", port))
        first.accept()[0].close()  # ours ends first, so the kernel remembers the pair for a minute
    with client, bind(ListenSettings(host="::1", port=port)) as second:
        assert port_of(second) == port

"""TLS: certificates that are renewed under traffic, clients that must show one, and what is no TLS; a Unix socket."""

import json
import signal
import socket
import ssl
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.certificates import Certificate, make_certificate
from tests.conftest import StartPool
from tests.pool import Pool, wait_for

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}


def flags_of(certificate: Certificate, *more: str) -> tuple[str, ...]:
    return ("--ssl-certfile", str(certificate.certificate), "--ssl-keyfile", str(certificate.key), *more)


def trusting(*certificates: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cadata="".join(certificate.pem for certificate in certificates))


def address(pool: Pool) -> tuple[str, int]:
    parts = urlsplit(pool.url)
    assert parts.hostname
    assert parts.port
    return parts.hostname, parts.port


def shown(pool: Pool) -> set[str]:
    """The certificates that new connections see, of whichever worker."""
    return {ssl.get_server_certificate(address(pool)) for _ in range(8)}


def workers(pool: Pool, context: ssl.SSLContext) -> set[int]:
    document = httpx.get(pool.url + "/pool", verify=context, timeout=10).json()
    return {process["pid"] for process in document["processes"]}


def test_a_renewed_certificate_reaches_every_worker_and_no_connection_is_dropped(
    start_pool: StartPool, tmp_path: Path
) -> None:
    used, new = make_certificate(tmp_path, "used"), make_certificate(tmp_path, "new")
    context, old_pem = trusting(used, new), used.pem
    with start_pool("--api-server-count", "2", *flags_of(used), engine=["--step-ms", "20"]) as pool:
        assert pool.url.startswith("https://")
        assert shown(pool) == {old_pem}
        before = workers(pool, context)
        with httpx.Client(base_url=pool.url, verify=context, timeout=30) as client:
            assert client.post(CHAT, json=BODY).status_code == 200
            body = BODY | {"max_tokens": 100, "stream": True, "ignore_eos": True}
            with client.stream("POST", CHAT, json=body) as stream:
                lines = stream.iter_lines()
                next(lines)
                new.copy_to(used)
                pool.process.send_signal(signal.SIGHUP)
                wait_for(lambda: "rolling restart is complete" in pool.log, 30, "the end of the restart")
                assert [line for line in lines if line][-1] == "data: [DONE]"
            assert client.post(CHAT, json=BODY).status_code == 200
        wait_for(lambda: not before & workers(pool, context), 20, "new workers only")
        assert shown(pool) == {new.pem}


def test_a_broken_certificate_changes_nothing_and_is_named(start_pool: StartPool, tmp_path: Path) -> None:
    used, other = make_certificate(tmp_path, "used"), make_certificate(tmp_path, "other")
    context, pem = trusting(used), used.pem
    with start_pool("--api-server-count", "2", *flags_of(used)) as pool:
        before = workers(pool, context)
        for number, breaking in enumerate(
            (
                lambda: used.certificate.write_text("nonsense"),
                lambda: used.certificate.write_text(other.pem),  # which is not this key's
                lambda: used.certificate.unlink(),
            ),
            1,
        ):
            breaking()
            pool.process.send_signal(signal.SIGHUP)
            wait_for(lambda n=number: pool.log.count("SIGHUP: TLS: ") == n, 10, "a complaint")
        assert pool.log.count("everything stays as it is") == 3
        assert shown(pool) == {pem}
        assert workers(pool, context) == before
        assert httpx.post(pool.url + CHAT, json=BODY, verify=context).status_code == 200


def test_clients_must_show_a_certificate_where_the_flag_says_so(start_pool: StartPool, tmp_path: Path) -> None:
    server, friend, stranger = (make_certificate(tmp_path, name) for name in ("server", "friend", "stranger"))
    flags = flags_of(server, "--ssl-ca-certs", str(friend.certificate))
    with start_pool("--api-server-count", "1", *flags) as pool:
        known = trusting(server)
        known.load_cert_chain(friend.certificate, friend.key)
        assert httpx.post(pool.url + CHAT, json=BODY, verify=known).status_code == 200
        unknown = trusting(server)
        unknown.load_cert_chain(stranger.certificate, stranger.key)
        for context in (unknown, trusting(server)):
            with pytest.raises(httpx.TransportError):
                httpx.get(pool.url + "/health", verify=context)
        assert httpx.get(pool.url + "/health", verify=known).status_code == 200
        assert "Traceback" not in pool.log


def test_what_is_no_tls_is_let_go_and_counted_out(start_pool: StartPool, tmp_path: Path) -> None:
    server = make_certificate(tmp_path, "server")
    with start_pool("--api-server-count", "1", "--header-timeout", "1", *flags_of(server)) as pool:
        for first in (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01\x00\x05", b""):
            with socket.create_connection(address(pool), 20) as connection:
                connection.sendall(first)
                while connection.recv(1000):
                    pass  # an alert, perhaps
        context = trusting(server)

        def open_connections() -> int:
            document = httpx.get(pool.url + "/pool", verify=context, timeout=10).json()
            return sum(process["connections"] for process in document["processes"])

        wait_for(lambda: open_connections() == 1, 10, "no connection but the one that asks")
        assert "Traceback" not in pool.log


def test_a_unix_socket_is_whose_mode_says_and_goes_with_the_pool(start_pool: StartPool, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with start_pool("--api-server-count", "2", "--uds", str(path), "--uds-mode", "660") as pool:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://x", timeout=20) as client:
            assert client.post(CHAT, json=BODY).status_code == 200
            assert len(client.get("/pool").json()["processes"]) == 2
            body = json.dumps(BODY | {"stream": True})
            stream = client.post(CHAT, content=body, headers={"content-type": "application/json"})
            assert stream.text.endswith("data: [DONE]\n\n")
        children = [process.pid for process in pool.descendants()]
        assert pool.stop() == 0
        assert not path.exists()
        assert not any(psutil.pid_exists(pid) for pid in children)

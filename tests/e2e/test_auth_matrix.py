"""Every route, in every spelling of its path, with every wrong way to bring a key: never a 2xx, never a 5xx.

It walks the route table, so a route is tested from the day on which it is added.
"""

from collections.abc import Iterator

import pytest

from apiserver.http.app import OPEN_ROUTES, ROUTES
from tests.pool import Pool, running_pool
from tests.raw_http import RawConnection

pytestmark = pytest.mark.e2e

KEY = "sk-right"
GUARDED = sorted({route.replace("{model:path}", "sim") for route in ROUTES if route.startswith("/")} - OPEN_ROUTES)
CREDENTIALS: dict[str, bytes] = {
    "none": b"",
    "empty": b"authorization:\r\nx-api-key:\r\n",
    "wrong": b"authorization: Bearer sk-wrong\r\n",
    "wrong, bare": b"authorization: sk-wrong\r\n",
    "wrong, other header": b"x-api-key: sk-wrong\r\n",
    "both wrong": b"authorization: Bearer sk-wrong\r\nx-api-key: also\r\n",
    "basic": b"authorization: Basic c2stcmlnaHQ6\r\n",
    "basic with the key": b"authorization: Basic sk-right\r\n",
    "token": b"authorization: Token sk-right\r\n",
    "prefix of it": b"authorization: Bearer sk-righ\r\n",
    "more than it": b"authorization: Bearer sk-right2\r\n",
    "twice in one": b"authorization: Bearer sk-right, sk-right\r\n",
    "another case": b"authorization: Bearer SK-RIGHT\r\n",
    "quoted": b'authorization: Bearer "sk-right"\r\n',
    "odd bytes": b"authorization: Bearer \xff\xfe\x80\r\nx-api-key: \xc3\x28\r\n",
    "not in UTF-8": b"authorization: Bearer schl\xfcssel\r\n",
    "in the query's place": b"cookie: api_key=sk-right\r\n",
    "second of its name": b"authorization: Bearer sk-wrong\r\nauthorization: Bearer sk-right\r\n",
    "overridden": b"x-original-url: /health\r\nx-rewrite-url: /health\r\nx-forwarded-prefix: /health\r\n",
}


def spellings(path: str) -> list[str]:
    first = f"%{ord(path[1]):02x}" if path[1:] else ""
    return [
        path,
        f"/prefix{path}",
        f"{path}/",
        f"/{path}",
        f"{path}//",
        f"/.{path}",
        f"/%2e{path}",
        f"/health/..{path}",
        f"/health/%2e%2e{path}",
        f"/health%2f..{path}",
        f"/{first}{path[2:]}",
        f"/%25{first[1:]}{path[2:]}",
        f"/{path[1:].replace('/', '%2F')}",
        f"/{path[1:].replace('/', chr(92))}",
        path.upper(),
        path.title(),
        f"{path}%00",
        f"{path}%20",
        f"{path}%0d%0a",
        f"{path};/health",
        f"{path}?/health",
        f"{path}?api_key={KEY}",
        f"{path}#/health",
        f"{path}.json",
        f"http://test{path}",
        f"http://test/prefix{path}",
        f"http://health{path}",
    ]


@pytest.fixture(scope="module")
def guarded_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    flags = ("--api-server-count", "1", "--api-key", KEY, "--root-path", "/prefix")
    with running_pool(tmp_path_factory.mktemp("matrix") / "pool.log", *flags) as pool:
        yield pool
        assert "Traceback" not in pool.log


def status_of(pool: Pool, method: str, target: str, headers: bytes) -> int:
    """Also of what is no HTTP, after which the connection ends."""
    with RawConnection(pool.url) as connection:
        body = b"{}" if method == "POST" else b""
        head = f"{method} {target} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n".encode()
        connection.send(head + headers + b"content-length: %d\r\n\r\n" % len(body) + body)
        return connection.reply(to_head=method == "HEAD").status


@pytest.mark.parametrize("path", GUARDED)
def test_no_spelling_and_no_wrong_key_opens_a_route(guarded_pool: Pool, path: str) -> None:
    wrong: list[tuple[int, str, str]] = []
    for target in spellings(path):
        for name, headers in CREDENTIALS.items():
            status = status_of(guarded_pool, "POST", target, headers)
            if status not in (400, 401):  # 400: some of these are no HTTP
                wrong.append((status, target, name))
    assert wrong == []


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_no_method_opens_a_route(guarded_pool: Pool, method: str, path: str) -> None:
    for headers in (b"", CREDENTIALS["wrong"]):
        assert status_of(guarded_pool, method, path, headers) == 401


@pytest.mark.parametrize("path", GUARDED)
def test_the_right_key_opens_each_of_them(guarded_pool: Pool, path: str) -> None:
    for headers in (b"authorization: Bearer sk-right\r\n", b"authorization: sk-right\r\n", b"x-api-key: sk-right\r\n"):
        for method in ("GET", "POST"):
            assert status_of(guarded_pool, method, path, headers) not in (401, 403)

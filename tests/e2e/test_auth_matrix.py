"""Every route, in every spelling of its path, with every wrong way to bring a key: never a 2xx, never a 5xx.

It walks the route table, so a route is tested from the day on which it is added.
"""

from collections.abc import Iterator

import pytest

from apiserver.http.app import OPEN_ROUTES, ORDINARY_ROUTES, ROUTES
from tests.conftest import StartPool
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


ADMIN_KEY = "sk-admin"
ADMINS_ROUTES = sorted({route for route in ROUTES if route.startswith("/")} - ORDINARY_ROUTES)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


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


# ---- admin keys ----


@pytest.fixture(scope="module")
def admins_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    flags = ("--api-server-count", "1", "--api-key", KEY, "--admin-api-key", ADMIN_KEY, "--root-path", "/prefix")
    with running_pool(tmp_path_factory.mktemp("admins") / "pool.log", *flags) as pool:
        yield pool
        assert "Traceback" not in pool.log
        assert ADMIN_KEY not in pool.log


def ways_to_bring(key: str) -> list[bytes]:
    return [
        f"authorization: Bearer {key}\r\n".encode(),
        f"authorization: {key}\r\n".encode(),
        f"x-api-key: {key}\r\n".encode(),
    ]


def test_the_admins_routes_are_known() -> None:
    """What is added is an admin's until it is called ordinary."""
    assert ADMINS_ROUTES == [
        "/continue_generation",
        "/flush_cache",
        "/load_lora_adapter",
        "/pause_generation",
        "/start_profile",
        "/stop_profile",
        "/unload_lora_adapter",
    ]


@pytest.mark.parametrize("path", ADMINS_ROUTES)
def test_no_spelling_and_no_ordinary_key_opens_an_admins_route(admins_pool: Pool, path: str) -> None:
    wrong: list[tuple[int, str, str, bytes]] = []
    for target in spellings(path):
        for method in METHODS:
            for headers in ways_to_bring(KEY):
                status = status_of(admins_pool, method, target, headers)
                # What is no route, or the wrong method of one, tells so only to whom it may be told.
                if status not in (400, 403, 404):
                    wrong.append((status, method, target, headers))
    assert wrong == []
    for headers in ways_to_bring(KEY):
        for target in (path, f"/prefix{path}", f"{path}?x=/health"):
            for method in METHODS:
                assert status_of(admins_pool, method, target, headers) == 403


@pytest.mark.parametrize("path", ADMINS_ROUTES)
def test_no_wrong_key_opens_an_admins_route(admins_pool: Pool, path: str) -> None:
    for name, headers in CREDENTIALS.items():
        for method in METHODS:
            assert status_of(admins_pool, method, path, headers) == 401, (name, method)


@pytest.mark.parametrize("path", GUARDED)
def test_an_admin_key_opens_every_route(admins_pool: Pool, path: str) -> None:
    for headers in ways_to_bring(ADMIN_KEY):
        for method in ("GET", "POST"):
            assert status_of(admins_pool, method, path, headers) not in (401, 403)
    status_of(admins_pool, "POST", "/continue_generation", ways_to_bring(ADMIN_KEY)[0])


@pytest.mark.parametrize("path", sorted(set(GUARDED) - set(ADMINS_ROUTES)))
def test_an_ordinary_key_opens_all_other_routes_beside_an_admin_key(admins_pool: Pool, path: str) -> None:
    for method in ("GET", "POST"):
        assert status_of(admins_pool, method, path, ways_to_bring(KEY)[0]) not in (401, 403)


def test_an_admins_refusal_has_the_form_of_whoever_asks(admins_pool: Pool) -> None:
    for headers, kind in (({}, "error"), ({"anthropic-version": "2023-06-01"}, "type")):
        refused = admins_pool.client.post("/flush_cache", headers={"x-api-key": KEY, **headers})
        assert refused.status_code == 403
        document = refused.json()
        assert kind in document
        assert document["error"]["type"] == "permission_error"
        assert "'key-1' may not do this: it needs an admin key" in document["error"]["message"]
        unknown = admins_pool.client.post("/flush_cache", headers=headers)
        assert unknown.status_code == 401
        assert unknown.json()["error"]["type"] == "authentication_error"


def test_the_document_of_the_routes_says_where_a_key_is_needed(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1", "--admin-api-key", ADMIN_KEY) as pool:
        document = pool.get("/openapi.json").json()
        assert document["security"] == []
        for path in ADMINS_ROUTES:
            assert all(operation["security"] for operation in document["paths"][path].values())
        assert "security" not in document["paths"]["/v1/completions"]["post"]
        assert pool.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200
        assert pool.post("/flush_cache", {}).status_code == 401
        assert pool.post("/abort_request", {"abort_all": True}).status_code == 401
        assert pool.post("/abort_request", {"rid": "mine"}).status_code == 200
        assert pool.post("/abort_request", {"abort_all": True}, **{"x-api-key": ADMIN_KEY}).status_code == 200
        assert "Bearer KEY" not in pool.log

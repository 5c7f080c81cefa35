"""Who may ask: keys on every route but the probes, nothing that listens beside HTTP, names of models."""

import json
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from apiserver.errors import Unauthorized
from apiserver.http.admin import ADMIN_ROUTES
from apiserver.http.app import DIALECTS, OPEN_ROUTES, ROUTES
from tests.conftest import StartPool
from tests.pool import ECHO_TEMPLATE, Pool, running_pool, wait_for
from tests.raw_http import RawConnection, request

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
KEY, OTHER_KEY = "sk-first", "sk-zweiter-Schlüssel"

OPEN = {"/health", "/ready", "/live", "/ping", "/metrics", "/version"}
GUARDED = sorted({route.replace("{model:path}", "sim") for route in ROUTES if route.startswith("/")} - OPEN)


@pytest.fixture(scope="module")
def guarded_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Two keys, two API servers, a prefix before every path."""
    flags = ["--api-server-count", "2", "--api-key", KEY, "--api-key", OTHER_KEY, "--chat-template", ECHO_TEMPLATE]
    flags += ["--root-path", "/prefix", "--access-log"]
    with running_pool(tmp_path_factory.mktemp("guarded") / "pool.log", *flags, engine=["--mode", "echo"]) as pool:
        yield pool


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def method_of(path: str) -> str:
    return "GET" if path.startswith(("/pool", "/v1/models")) else "POST"


def ask(pool: Pool, path: str, **headers: str) -> httpx.Response:
    # What is done to the engine (a pause!) must not be done by a test of keys: no list is an object.
    body = "[]" if path in ADMIN_ROUTES else json.dumps(HELLO) if method_of(path) == "POST" else None
    return pool.client.request(
        method_of(path), path, content=body, headers={"content-type": "application/json", **headers}
    )


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """In OpenAI's form, or in Anthropic's on its routes, which has neither param nor code."""
    assert response.status_code == status, response.text
    document = response.json()
    if "/v1/messages" in response.request.url.path:
        assert set(document) == {"type", "error", "request_id"}
        assert set(document["error"]) == {"type", "message"}
        assert document["request_id"] == response.headers["request-id"]
        return document["error"]
    assert set(document) == {"error"}
    assert set(document["error"]) == {"message", "type", "param", "code"}
    return document["error"]


# ---- keys (vllm#18892, #58144, #42591, vllm-mlx#317, CVE-2025-59425) ------------------------------------------------


def test_the_list_of_open_routes_is_short_and_known() -> None:
    assert OPEN_ROUTES == OPEN


@pytest.mark.parametrize("path", sorted(OPEN))
def test_probes_and_metrics_need_no_key(guarded_pool: Pool, path: str) -> None:
    assert guarded_pool.client.get(path).status_code == 200
    assert guarded_pool.client.get(path, headers=bearer("wrong")).status_code == 200


def assert_unauthorized(response: httpx.Response, path: str, code: int | str) -> None:
    """In the shape of the route's own dialect."""
    if path not in DIALECTS:
        error = error_of(response, 401)
        assert (error["type"], error["code"]) == ("authentication_error", code)
        return
    assert response.status_code == 401, response.text
    own = DIALECTS[path].error(Unauthorized("x", code=None if code == 401 else str(code)))
    document = response.json()
    assert set(own) <= set(document)
    if "code" in own.get("error", {}):
        assert (document["error"]["type"], document["error"]["code"]) == (own["error"]["type"], code)


@pytest.mark.parametrize("path", GUARDED)
def test_every_other_route_needs_a_key(guarded_pool: Pool, path: str) -> None:
    response = ask(guarded_pool, path)
    assert_unauthorized(response, path, 401)
    assert response.headers["www-authenticate"] == "Bearer"
    assert_unauthorized(ask(guarded_pool, path, **bearer("wrong")), path, "invalid_api_key")
    for headers in (bearer(KEY), {"x-api-key": KEY}, {"authorization": KEY}):
        assert ask(guarded_pool, path, **headers).status_code != 401


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", [CHAT, "/pool", "/v1/models", "/nowhere", "/invocations", "/v2/embed", "/"])
def test_without_a_key_no_method_of_no_path_says_more_than_401(guarded_pool: Pool, method: str, path: str) -> None:
    """Also what is no route, or not yet: the default is closed."""
    assert guarded_pool.client.request(method, path).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/pool/",
        "//pool",
        "/./pool",
        "/health/../pool",
        "/health/..;/pool",
        "/health%2f..%2fpool",
        "/health%2F%2E%2E%2Fpool",
        "/%70ool",
        "/pool%00",
        "/pool%0A",
        "/pool%20",
        "/pool;health",
        "/pool?/health",
        "/pool?x=/health",
        "/pool#/health",
        "/POOL",
        "/prefix/pool",
        "/v1/models%2F..%2F..%2Fhealth",
        "/v1/models/../../health",
        "/v1/models//health",
        "/healthy",
        "/health/",
        "/metrics/../pool",
        "/metrics%23",
        "/v1/chat%2Fcompletions",
        "/v1/chat/completions%0A",
    ],
)
def test_no_spelling_of_a_path_gets_round_the_key(guarded_pool: Pool, path: str) -> None:
    for method in ("GET", "POST"):
        with RawConnection(guarded_pool.url) as connection:
            connection.send(f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
            assert connection.reply().status == 401


def test_a_whole_url_as_target_is_guarded_by_its_path(guarded_pool: Pool) -> None:
    for target, status in (("http://x/pool", 401), ("http://x/health", 200), ("http://health/pool", 401)):
        with RawConnection(guarded_pool.url) as connection:
            connection.send(request("GET", target))
            assert connection.reply().status == status


@pytest.mark.parametrize(
    "authorization",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer  ",
        b"bearer wrong",
        b"Basic c2stZmlyc3Q6",
        b"Basic sk-first",
        b"Bearer sk-first2",
        b"Bearer sk-firs",
        b"Bearer SK-FIRST",
        b"Bearer sk-first sk-first",
        b"Bearer \xff\xfe",
        b"\xc3\x28",
        "Bearer schlüssel".encode("latin-1"),
        b"Bearer " + b"x" * 60_000,
    ],
)
def test_a_wrong_key_is_a_401_whatever_its_bytes(guarded_pool: Pool, authorization: bytes) -> None:
    for name in (b"authorization", b"x-api-key"):
        with RawConnection(guarded_pool.url) as connection:
            connection.send(b"GET /pool HTTP/1.1\r\nhost: x\r\n" + name + b": " + authorization + b"\r\n\r\n")
            assert connection.reply().status == 401
            connection.send(request("GET", "/pool", x_api_key=KEY))
            assert connection.reply().status == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_may_be_spelled_as_one_likes(guarded_pool: Pool, scheme: str) -> None:
    assert guarded_pool.client.get("/pool", headers={"authorization": f"{scheme} {KEY}"}).status_code == 200


def test_each_of_several_keys_is_enough_also_one_with_an_umlaut(guarded_pool: Pool) -> None:
    for key in (KEY, OTHER_KEY):
        sent = b"Bearer " + key.encode()
        assert guarded_pool.client.get("/pool", headers={b"authorization": sent}).status_code == 200


def test_a_placeholder_in_the_other_header_does_no_harm(guarded_pool: Pool) -> None:
    """The OpenAI SDK always sends a Bearer, also where the user put the key elsewhere."""
    headers = {**bearer("placeholder"), "x-api-key": KEY}
    assert guarded_pool.client.get("/pool", headers=headers).status_code == 200
    assert guarded_pool.client.get("/pool", headers={**bearer(KEY), "x-api-key": "none"}).status_code == 200
    assert guarded_pool.client.get("/pool", headers={**bearer("wrong"), "x-api-key": "none"}).status_code == 401


def test_the_official_client_is_told_that_its_key_is_wrong(guarded_pool: Pool) -> None:
    with openai.OpenAI(base_url=f"{guarded_pool.url}/v1", api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"
    with openai.OpenAI(base_url=f"{guarded_pool.url}/v1", api_key=KEY, max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["sim"]


def test_keys_are_in_no_log(guarded_pool: Pool) -> None:
    ask(guarded_pool, "/pool", **bearer(KEY))
    ask(guarded_pool, "/pool", **bearer("sk-wrong-and-secret"))
    wait_for(lambda: "/pool 401" in guarded_pool.log, what="the request's line in the log")
    for key in (KEY, OTHER_KEY, "sk-wrong-and-secret"):
        assert key not in guarded_pool.log


def test_a_body_is_not_read_for_somebody_without_a_key(guarded_pool: Pool) -> None:
    with RawConnection(guarded_pool.url) as connection:
        connection.send(request("POST", CHAT, content_type="application/json", content_length="1000"))
        assert connection.reply().status == 401


# ---- paths ---------------------------------------------------------------------------------------------------------


def test_behind_a_prefix_the_routes_are_the_same(guarded_pool: Pool) -> None:
    """Whether the proxy strips it or not: the address that the pool prints has it, and works without a proxy."""
    assert guarded_pool.url.endswith("/prefix")
    assert ask(guarded_pool, CHAT, **bearer(KEY)).status_code == 200
    assert ask(guarded_pool, "/v1/models/sim", **bearer(KEY)).status_code == 200
    assert ask(guarded_pool, "/v1/models/other", **bearer(KEY)).status_code == 404
    for path, status in (("/pool", 200), ("/prefix/pool", 200), ("/prefix/prefix/pool", 404), ("/prefixpool", 404)):
        with RawConnection(guarded_pool.url) as connection:
            connection.send(request("GET", path, x_api_key=KEY))
            assert connection.reply().status == status


def test_a_line_break_in_a_path_forges_no_line_of_the_access_log(guarded_pool: Pool) -> None:
    path = "/v1/models/x%0A12:00:00%20INFO%20forged"
    assert guarded_pool.client.get(path, headers=bearer(KEY)).status_code == 404
    wait_for(lambda: "INFO%20forged" in guarded_pool.log, what="the request's line in the log")
    assert "INFO forged" not in guarded_pool.log


def test_probes_are_in_no_access_log_and_requests_are_without_their_text(guarded_pool: Pool) -> None:  # vllm#29023
    for path in sorted(OPEN):
        guarded_pool.client.get(path)
    secret = {"messages": [{"role": "user", "content": "a text of somebody's"}]}
    body, headers = json.dumps(secret), {"content-type": "application/json", "x-request-id": "the-one", **bearer(KEY)}
    assert guarded_pool.client.post("/v1/chat/completions", content=body, headers=headers).status_code == 200
    wait_for(lambda: "the-one POST" in guarded_pool.log, what="the request's line in the log")
    assert "/v1/chat/completions 200" in guarded_pool.log
    assert not any(f"{path} 2" in guarded_pool.log for path in OPEN)
    assert "a text of somebody's" not in guarded_pool.log


# ---- sockets (LightLLM#1413, sglang#21435, lmdeploy#4015) -----------------------------------------------------------


def test_nothing_of_the_pool_listens_but_the_http_port(echo_pool: Pool) -> None:
    processes = [psutil.Process(echo_pool.process.pid), *echo_pool.descendants()]
    listening = {
        (connection.laddr.ip, connection.laddr.port)
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM
    }
    assert listening == {("127.0.0.1", httpx.URL(echo_pool.url).port)}


def test_the_wires_sockets_are_in_a_directory_that_only_the_user_can_enter(echo_pool: Pool) -> None:
    processes = [psutil.Process(echo_pool.process.pid), *echo_pool.descendants()]
    sockets: list[Any] = [connection for process in processes for connection in process.net_connections("unix")]
    paths = {Path(connection.laddr) for connection in sockets if connection.laddr.startswith("/")}
    assert paths
    for path in paths:
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


# ---- models (vllm#34326, SURFACE 2.6) -------------------------------------------------------------------------------


def test_each_of_several_names_is_listed_taken_and_answered_with(start_pool: StartPool) -> None:
    names = ["first", "org/second", "claude-3-5-sonnet"]
    flags = ("--api-server-count", "1", "--served-model-name", *names)
    with start_pool(*flags, engine=["--mode", "echo"]) as pool:
        listed = pool.get("/v1/models").json()
        assert [model["id"] for model in listed["data"]] == names
        for name in names:
            assert pool.get(f"/v1/models/{name}").json()["id"] == name
            body = {**HELLO, "model": name, "max_tokens": 2}
            assert pool.post(CHAT, body).json()["model"] == name
            assert f'"model":"{name}"' in pool.post(CHAT, {**body, "stream": True}).text
            assert pool.post("/v1/completions", {"prompt": "a", "model": name}).json()["model"] == name
        assert pool.post(CHAT, {**HELLO, "max_tokens": 2}).json()["model"] == "first"
        message = error_of(pool.client.post(CHAT, json={**HELLO, "model": "sim"}), 404)["message"]
        assert all(name in message for name in names)


def test_any_model_is_taken_where_the_flag_says_so(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1", "--any-model", engine=["--mode", "echo"]) as pool:
        answer = pool.post(CHAT, {**HELLO, "model": "gpt-4o", "max_tokens": 2})
        assert answer.json()["model"] == "gpt-4o"
        # Every chunk of a stream says the name: a megabyte of it is gigabytes of stream.
        for path in (CHAT, "/v1/messages", "/generate", "/tokenize"):
            error = error_of(pool.client.post(path, json={**HELLO, "model": "m" * 257}), 400)
            assert "256 characters" in error["message"]
        assert pool.post(CHAT, {**HELLO, "model": "m" * 256, "max_tokens": 2}).status_code == 200


def test_the_model_list_has_what_openai_and_anthropic_clients_read(echo_pool: Pool) -> None:
    document = echo_pool.get("/v1/models").json()
    assert document["object"] == "list"
    assert (document["has_more"], document["first_id"], document["last_id"]) == (False, "sim", "sim")
    [model] = document["data"]
    assert model["object"] == model["type"] == "model"
    assert model["id"] == model["display_name"] == "sim"
    assert model["max_model_len"] == 20_000
    assert model["created"] <= time.time()
    assert {"owned_by", "root", "parent", "permission", "created_at"} <= set(model)
    assert [entry.id for entry in echo_pool.openai.models.list()] == ["sim"]
    assert echo_pool.openai.models.retrieve("sim").id == "sim"
    with pytest.raises(openai.NotFoundError) as caught:
        echo_pool.openai.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_every_worker_lists_the_same(echo_pool: Pool) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(echo_pool.url)) for _ in range(8)]
        for connection in connections:
            connection.send(request("GET", "/v1/models"))
        assert len({connection.reply().body for connection in connections}) == 1


# ---- the routes without a body --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health", "/ready", "/live", "/ping"])
def test_a_healthy_pool_says_so(echo_pool: Pool, path: str) -> None:
    response = echo_pool.get(path)
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_the_version_and_the_metrics_are_what_they_claim(echo_pool: Pool) -> None:
    assert echo_pool.get("/version").json()["version"]
    metrics = echo_pool.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "apiserver:num_requests_running" in metrics.text


def test_a_client_key_alone_opens_nothing_that_has_no_route(guarded_pool: Pool) -> None:
    for path in ("/docs", "/redoc", "/update_weights_from_disk", "/slow_down"):
        assert guarded_pool.client.get(path, headers=bearer(KEY)).status_code in (404, 405)

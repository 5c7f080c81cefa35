"""CORS (vllm#4862): closed, or for the pages that a flag names; also for errors, and beside keys."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import StartPool
from tests.pool import ECHO_TEMPLATE, Pool, running_pool

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
PAGE = "https://page.example"
BEARER = {"authorization": "Bearer sk-first"}


@pytest.fixture(scope="module")
def page_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A key, and a page that may call."""
    flags = ("--api-server-count", "1", "--api-key", "sk-first", "--chat-template", ECHO_TEMPLATE)
    log = tmp_path_factory.mktemp("page") / "pool.log"
    with running_pool(log, *flags, "--allowed-origins", PAGE, engine=["--mode", "echo"]) as pool:
        yield pool


def preflight(pool: Pool, path: str, origin: str) -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    return pool.client.options(path, headers=headers)


def test_cors_is_closed_without_a_flag(echo_pool: Pool) -> None:
    assert preflight(echo_pool, CHAT, PAGE).status_code == 405
    for response in (
        echo_pool.client.get("/v1/models", headers={"origin": PAGE}),
        echo_pool.client.post(CHAT, json=HELLO, headers={"origin": PAGE}),
        echo_pool.client.post(CHAT, content=b"{", headers={"origin": PAGE}),
    ):
        assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/pool", "/nowhere"])
def test_a_preflight_has_no_key_and_needs_none(page_pool: Pool, path: str) -> None:
    response = preflight(page_pool, path, PAGE)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == PAGE
    assert "POST" in response.headers["access-control-allow-methods"]
    assert "authorization" in response.headers["access-control-allow-headers"].lower()


def test_a_preflight_of_another_page_is_refused(page_pool: Pool) -> None:
    response = preflight(page_pool, CHAT, "https://other.example")
    assert response.status_code == 400
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status"),
    [
        ("POST", CHAT, json.dumps(HELLO), BEARER, 200),
        ("POST", CHAT, "{", BEARER, 400),
        ("POST", CHAT, json.dumps(HELLO), {}, 401),
        ("GET", "/nowhere", None, BEARER, 404),
        ("GET", CHAT, None, BEARER, 405),
        ("POST", CHAT, "x" * (33 * 1024 * 1024), BEARER, 413),
        ("POST", CHAT, json.dumps({**HELLO, "stream": True}), BEARER, 200),
    ],
)
def test_a_page_that_may_call_can_read_the_answer_also_when_it_is_an_error(
    page_pool: Pool, method: str, path: str, content: str | None, headers: dict[str, str], status: int
) -> None:
    sent = {"origin": PAGE, "content-type": "application/json", **headers}
    response = page_pool.client.request(method, path, content=content, headers=sent)
    assert response.status_code == status
    assert response.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in response.headers["access-control-expose-headers"]
    assert response.headers["x-request-id"]


def test_every_page_may_call_where_the_flag_says_so(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1", "--allowed-origins", "*") as pool:
        assert preflight(pool, CHAT, "https://anywhere.example").headers["access-control-allow-origin"] == "*"
        headers = {"origin": PAGE, "content-type": "application/json"}
        response = pool.client.post(CHAT, content=b"{", headers=headers)
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (400, "*")

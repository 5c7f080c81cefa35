"""Rules that hold on every route: each runs over the route table, so a new route is tested the day it comes."""

import json
from typing import Any

import httpx
import pytest

from apiserver.errors import InvalidRequest
from apiserver.http.admin import ADMIN_ROUTES
from apiserver.http.app import DIALECTS
from apiserver.http.info import INFO_ROUTES
from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.protocol.decoding import MOST_CONTAINERS
from tests.e2e.refusals import EMBEDDINGS, GOOD, error_of, local_port, post

pytestmark = pytest.mark.e2e

EMBEDDING = {EMBEDDINGS, "/encode", "/rerank", "/v1/rerank", "/v2/rerank", "/embed", "/similarity"}
RESPONSES = "/v1/responses"  # a dialect that is no table row: it loads what came before first
WITHOUT_GOOD = {"/classify", "/v1/classify"}  # no engine here has a classifier, so nothing that they are sent is good
every_route = pytest.mark.parametrize("path", sorted({*DIALECTS, RESPONSES}))

# What is no question to the engine.
WITHOUT_ENGINE = {"/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize", "/v1/messages/count_tokens"}
WITHOUT_ENGINE |= {"/parse_function_call", "/separate_reasoning"}

TOO_MANY_LISTS = b'{"input": [' + b",".join([b"[1]"] * MOST_CONTAINERS) + b"]}"
NO_JSON: list[tuple[bytes, str]] = [
    (b"", "empty"),
    (b"{", "not valid JSON"),
    (b'{"n": NaN}', "not valid JSON"),
    (b'\xef\xbb\xbf{"model": "sim"}', "byte order mark"),
    (b'{"model": "\xd6\xd0\xce\xc4"}', "not valid UTF-8"),
    (rb'{"model": "\ud83d"}', "lone surrogate"),
    (b"[]", "object"),
    (b"null", "object"),
    (b'"text"', "object"),
    (b'{"model": {}}', "model"),
    (b'{"model": ' + b"[" * 20_000, ""),
]


def client_of(path: str, echo_client: httpx.Client, embed_client: httpx.Client) -> httpx.Client:
    return embed_client if path in EMBEDDING else echo_client


def assert_refused(response: httpx.Response, path: str, status: int) -> str:
    """In the route's own shape, with a status of its own. Returns what it says."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    shape = DIALECTS.get(path, ChatCompletion).error(InvalidRequest("x"))
    assert set(shape) <= set(document)
    inner: Any = document.get("error", document)
    assert isinstance(inner, dict)
    return inner["message"]


def assert_serves(client: httpx.Client, path: str, refused: httpx.Response) -> None:
    """A good request on the same connection, after a refusal."""
    if path in WITHOUT_GOOD:
        return
    response = post(client, path, GOOD[path])
    assert response.status_code == 200, response.text
    assert local_port(response) == local_port(refused)


def test_a_good_request_of_every_route_is_known_here() -> None:
    """The rules below are tried on it: whoever adds a route adds one."""
    assert {*DIALECTS, RESPONSES} - WITHOUT_GOOD <= set(GOOD)


@every_route
def test_a_body_that_is_no_object_of_json_is_a_400_that_says_why(
    echo_client: httpx.Client, embed_client: httpx.Client, path: str
) -> None:
    client = client_of(path, echo_client, embed_client)
    for body, says in NO_JSON:
        response = post(client, path, body)
        assert says in assert_refused(response, path, 400), body
    assert_serves(client, path, post(client, path, b""))


@every_route
def test_more_lists_than_anybody_needs_are_a_413_before_they_are_made(
    echo_client: httpx.Client, embed_client: httpx.Client, path: str
) -> None:
    client = client_of(path, echo_client, embed_client)
    response = post(client, path, TOO_MANY_LISTS)
    assert str(MOST_CONTAINERS) in assert_refused(response, path, 413)


@every_route
def test_another_model_is_a_404(echo_client: httpx.Client, embed_client: httpx.Client, path: str) -> None:
    client = client_of(path, echo_client, embed_client)
    response = post(client, path, {**GOOD.get(path, {}), "model": "nobody"})
    assert "nobody" in assert_refused(response, path, 404)
    assert_serves(client, path, response)


@every_route
def test_another_content_type_is_a_415(echo_client: httpx.Client, embed_client: httpx.Client, path: str) -> None:
    client = client_of(path, echo_client, embed_client)
    response = client.post(path, content=json.dumps(GOOD.get(path, {})), headers={"content-type": "text/plain"})
    assert "application/json" in assert_refused(response, path, 415)


@every_route
def test_another_method_is_a_405_that_names_the_right_ones(
    echo_client: httpx.Client, embed_client: httpx.Client, path: str
) -> None:
    client = client_of(path, echo_client, embed_client)
    for method in ("GET", "DELETE", "PATCH"):
        response = client.request(method, path)
        if "POST" in response.headers.get("allow", "POST") and response.status_code == 405:
            assert_refused(response, path, 405)
            assert "POST" in response.headers["allow"]
    assert client.request("DELETE", path).status_code == 405


@every_route
def test_a_model_of_another_kind_is_a_400(echo_client: httpx.Client, embed_client: httpx.Client, path: str) -> None:
    """Generating routes of an embedding model and the other way round; what no engine takes part in is served."""
    if path in WITHOUT_GOOD or path in WITHOUT_ENGINE:
        return
    client = echo_client if path in EMBEDDING else embed_client
    response = post(client, path, GOOD[path])
    assert_refused(response, path, 400)


@pytest.mark.parametrize("path", ["/generate", "/encode"])
def test_native_routes_take_a_put_like_a_post(echo_client: httpx.Client, embed_client: httpx.Client, path: str) -> None:
    client = client_of(path, echo_client, embed_client)
    response = client.put(path, json=GOOD[path])
    assert response.status_code == 200
    assert response.json()["meta_info"]["prompt_tokens"] == 2


@pytest.mark.parametrize("path", sorted({**ADMIN_ROUTES, **INFO_ROUTES}))
def test_the_routes_about_the_pool_know_their_methods_too(echo_client: httpx.Client, path: str) -> None:
    response = echo_client.request("DELETE", path)
    error_of(response, 405)
    methods = {**ADMIN_ROUTES, **INFO_ROUTES}[path][1]
    assert response.headers["allow"] == ", ".join(methods)


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
def test_what_is_handed_on_must_be_json_throughout(echo_client: httpx.Client, path: str) -> None:
    for body in (b'{"a": "\xff"}', b'{"a": ' + b"[" * 20_000):
        assert "JSON" in error_of(post(echo_client, path, body))["message"]


@pytest.mark.parametrize("path", sorted(set(ADMIN_ROUTES) - {"/flush_cache"}))
@pytest.mark.parametrize("body", [b"{", b"[]", b'{"rid": 5, "mode": 5, "lora_name": 5, "x"}'])
def test_what_is_no_json_does_nothing_to_the_engine(echo_client: httpx.Client, path: str, body: bytes) -> None:
    error_of(post(echo_client, path, body))


def test_no_classes_are_known_here(echo_client: httpx.Client) -> None:
    for path in ("/classify", "/v1/classify"):
        error = error_of(post(echo_client, path, {"input": "a"}))
        assert "no classifier" in error["message"]

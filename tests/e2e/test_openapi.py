"""GET /openapi.json: every route, by a document that is valid and says what the server does."""

import json
from typing import Any

import httpx
import pytest
from openapi_spec_validator import validate

from apiserver.errors import InvalidRequest
from apiserver.http.admin import ADMIN_ROUTES
from apiserver.http.app import DIALECTS, OPEN_ROUTES, ROUTES
from tests.conftest import StartPool
from tests.pool import Pool

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def document(echo_pool: Pool) -> dict[str, Any]:
    response = echo_pool.get("/openapi.json")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    return response.json()


def in_document(path: str) -> str:
    return path.replace("{model:path}", "{model}")


def properties(document: dict[str, Any], path: str) -> set[str]:
    """The fields of all kinds of body that a path takes."""
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    names: set[str] = set()
    for reference in schema.get("anyOf", [schema]):
        names |= set(document["components"]["schemas"][reference["$ref"].rpartition("/")[2]]["properties"])
    return names


def test_it_is_a_valid_document(document: dict[str, Any]) -> None:
    validate(document)


def test_it_has_every_route(document: dict[str, Any]) -> None:
    assert set(document["paths"]) == {in_document(path) for path in ROUTES if path.startswith("/")}


def test_no_two_operations_have_one_name(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", sorted({**DIALECTS, **ADMIN_ROUTES}))
def test_a_body_has_the_fields_that_are_decoded(document: dict[str, Any], path: str) -> None:
    structs = DIALECTS[path].fields if path in DIALECTS else (ADMIN_ROUTES[path][2],)
    assert properties(document, path) == {name for struct in structs for name in struct.__struct_encode_fields__}


def test_a_route_that_takes_several_kinds_of_body_has_them_all(document: dict[str, Any]) -> None:
    assert {"messages", "prompt", "token_ids", "texts", "inputs"} <= properties(document, "/invocations")
    assert {"query", "documents", "texts"} <= properties(document, "/rerank")


@pytest.mark.parametrize("path", sorted(DIALECTS))
def test_errors_are_described_as_the_dialect_writes_them(document: dict[str, Any], path: str) -> None:
    schema = document["paths"][path]["post"]["responses"]["4XX"]["content"]["application/json"]["schema"]
    error = DIALECTS[path].error(InvalidRequest("x"))
    assert set(schema["required"]) == set(error)
    if "error" in error:  # Cohere's is flat
        assert set(schema["properties"]["error"]["required"]) == set(error["error"])


def test_streams_are_described_where_there_are_some(document: dict[str, Any]) -> None:
    streaming = {
        path
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if "text/event-stream" in operation["responses"]["200"]["content"]
    }
    stream = document["paths"]["/generate"]["put"]["responses"]["200"]["content"]["text/event-stream"]
    assert stream == {}  # a schema would be taken for each event's, and for the whole text's
    assert {"/v1/chat/completions", "/v1/messages", "/generate", "/invocations", "/v1/responses"} <= streaming
    assert not {"/v1/embeddings", "/tokenize", "/health", "/v1/chat/completions/render"} & streaming


def test_the_methods_are_those_that_the_route_takes(document: dict[str, Any], echo_client: httpx.Client) -> None:
    for path, methods in document["paths"].items():
        response = echo_client.request("PATCH", path.replace("{", "").replace("}", ""))
        assert response.status_code == 405
        assert response.headers["allow"].lower().split(", ") == list(methods), path


def test_it_is_behind_the_key_and_says_what_is(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1", "--api-key", "sk-one") as pool:
        assert pool.get("/openapi.json").status_code == 401
        both = [pool.client.get("/openapi.json", headers={"x-api-key": "sk-one"}) for _ in range(2)]
        assert both[0].content == both[1].content
        document = json.loads(both[0].content)
    validate(document)
    assert {next(iter(one)) for one in document["security"]} == {"bearer", "x-api-key"}
    without = {
        path
        for path, methods in document["paths"].items()
        if all(operation.get("security") == [] for operation in methods.values())
    }
    assert without == set(OPEN_ROUTES)


def test_without_keys_it_asks_for_none(document: dict[str, Any]) -> None:
    assert document["security"] == []

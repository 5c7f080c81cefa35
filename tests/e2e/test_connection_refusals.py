"""What a connection refuses by itself: in the form of the route that was asked for, as far as that had arrived."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import StartPool
from tests.e2e.refusals import CHAT, HELLO_BODY
from tests.pool import Pool, running_pool, wait_for
from tests.raw_http import RawConnection, request

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def strict_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One API server that waits for a second, behind a prefix."""
    flags = ("--api-server-count", "1", "--header-timeout", "1", "--body-timeout", "1", "--root-path", "/prefix")
    with running_pool(tmp_path_factory.mktemp("refusals") / "pool.log", *flags) as pool:
        yield pool
        assert "Traceback" not in pool.log


def in_form(document: dict[str, Any], form: str) -> bool:
    if form == "anthropic":
        return set(document) == {"type", "error", "request_id"} and set(document["error"]) == {"type", "message"}
    if form == "cohere":
        return set(document) <= {"message", "id"} and "message" in document
    return set(document) == {"error"} and set(document["error"]) == {"message", "type", "param", "code"}


VERSION = {"anthropic_version": "2023-06-01", "x_more": "1"}  # a header is known when the next one begins
FORMS = [
    ("/v1/messages", {}, "anthropic"),
    ("/v1/messages/count_tokens?beta=true", {}, "anthropic"),
    ("/v1/messages/nowhere", {}, "anthropic"),
    ("/prefix/v2/rerank", {}, "cohere"),
    ("/v1/models", VERSION, "anthropic"),
    (CHAT, VERSION, "openai"),  # the route's own form, as in every other error
    ("/v2/rerank", {}, "cohere"),
    (CHAT, {}, "openai"),
    ("/nowhere", {}, "openai"),
]


@pytest.mark.parametrize(("path", "headers", "form"), FORMS)
def test_what_a_connection_refuses_has_the_form_of_its_route(
    strict_pool: Pool, path: str, headers: dict[str, str], form: str
) -> None:
    in_the_head = request("POST", path, **headers, huge="x" * 100_000)
    no_http = request("POST", path, **headers)[:-2] + b"a header without a colon\r\n\r\n"
    in_the_body = request("POST", path, **headers, transfer_encoding="chunked") + b"no length\r\n"
    for status, sent in ((431, in_the_head), (400, no_http), (400, in_the_body)):
        with RawConnection(strict_pool.url) as connection:
            connection.send(sent)
            reply = connection.reply()
            assert reply.status == status
            assert in_form(reply.json(), form), reply.body


def test_what_comes_too_slowly_is_refused_in_the_form_of_its_route(strict_pool: Pool) -> None:
    slow = (b"POST /v1/messages HTTP/1.1\r\nhost: x\r\n", request("POST", "/v1/messages", HELLO_BODY)[:-5])
    for sent in slow:
        with RawConnection(strict_pool.url) as connection:
            connection.send(sent)
            reply = connection.reply()
            assert reply.status == 408
            assert in_form(reply.json(), "anthropic"), reply.body
            assert reply.error["type"] == "timeout_error"


@pytest.mark.parametrize("sent", [b"POST /v1/mess", b"\x16\x03\x01", b"POST http://[/v1/messages HTTP/1.1\r\n\r\n"])
def test_what_names_no_path_is_refused_in_openais_form(strict_pool: Pool, sent: bytes) -> None:
    with RawConnection(strict_pool.url) as connection:
        connection.send(sent)
        assert in_form(connection.reply().json(), "openai")


def test_a_request_whose_body_never_came_is_counted_as_what_its_client_was_told(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1", "--body-timeout", "1") as pool:
        half = request("POST", CHAT, HELLO_BODY)[:-5]
        chunked = request("POST", CHAT, content_type="application/json", transfer_encoding="chunked")
        for number, (status, sent, rest) in enumerate(((408, half, b""), (400, chunked, b"no length\r\n")), 1):
            with RawConnection(pool.url) as connection:
                connection.send(sent)
                wait_for(lambda n=number: pool.metric("http_requests_total", route=CHAT) == n, what="a request")
                connection.send(rest)
                assert connection.reply().status == status
            wait_for(
                lambda s=status: pool.metric("http_responses_total", route=CHAT, status=str(s)) == 1, what="its count"
            )
            assert pool.metric("connection_refusals_total", status=str(status)) == 1
        assert pool.metric("http_responses_total", route=CHAT) == 2

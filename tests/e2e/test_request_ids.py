"""Request ids (vllm#10968): the client's own where it is a harmless one, else ours; in the header alone."""

from typing import Any

import openai
import pytest

from tests.pool import Pool
from tests.raw_http import RawConnection, request

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}


@pytest.mark.parametrize("sent", ["mine", "a" * 128, "0123-abc_DEF.x:y/z+w=", "req-1"])
def test_a_clients_request_id_comes_back(echo_pool: Pool, sent: str) -> None:
    for response in (
        echo_pool.client.post(CHAT, json=HELLO, headers={"x-request-id": sent}),
        echo_pool.client.post(CHAT, content=b"{", headers={"x-request-id": sent}),
        echo_pool.client.get("/nowhere", headers={"x-request-id": sent}),
        echo_pool.client.get("/health", headers={"x-request-id": sent}),
    ):
        assert response.headers["x-request-id"] == sent


@pytest.mark.parametrize(
    "sent",
    [b"", b"a" * 129, b"a" * 60_000, b"a b", b"a\tb", b"a;b", b"<script>", b"\xff\xfe", "ä".encode(), b"a%0d%0ab"],
)
def test_an_id_that_is_long_or_strange_is_replaced_by_ours(echo_pool: Pool, sent: bytes) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(b"GET /version HTTP/1.1\r\nhost: x\r\nx-request-id: " + sent + b"\r\n\r\n")
        reply = connection.reply()
        assert reply.status == 200
        [given] = reply.headers["x-request-id"]
        assert given.startswith("req-")
        assert len(given) < 40


def test_a_request_id_is_in_the_header_and_in_no_chunk(echo_pool: Pool) -> None:
    response = echo_pool.client.post(CHAT, json={**HELLO, "stream": True}, headers={"x-request-id": "only-once"})
    assert response.headers["x-request-id"] == "only-once"
    assert "only-once" not in response.text


def test_no_two_requests_get_the_same_id(echo_pool: Pool) -> None:
    ids: set[str] = set()
    for _ in range(10):  # connections, and so API servers
        with RawConnection(echo_pool.url) as connection:
            connection.send(request("GET", "/version") * 5)
            ids |= {connection.reply().headers["x-request-id"][0] for _ in range(5)}
    assert len(ids) == 50


def test_the_official_client_finds_the_request_id(echo_pool: Pool) -> None:
    answer = echo_pool.openai.chat.completions.create(model="sim", messages=HELLO["messages"])
    assert answer._request_id  # its public name, by its documentation
    with pytest.raises(openai.BadRequestError) as caught:
        echo_pool.openai.chat.completions.create(model="sim", messages=[])
    assert caught.value.request_id
    assert caught.value.param == "messages"

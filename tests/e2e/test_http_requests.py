"""What few clients do and all may: odd types and encodings, expectations and upgrades, every method and path."""

import gzip

import pytest

from tests.e2e.refusals import CHAT, HELLO_BODY, assert_answers, assert_refused
from tests.pool import Pool
from tests.raw_http import RawConnection, request

pytestmark = pytest.mark.e2e

# ---- content types and encodings ----


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", "Application/JSON ;x=y", "application/json;"],
)
def test_json_is_taken_under_every_spelling_of_its_name(echo_pool: Pool, content_type: str) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", CHAT, HELLO_BODY, content_type=content_type))
        assert connection.reply().status == 200


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp"]
)
def test_a_body_that_is_not_called_json_is_a_415(echo_pool: Pool, content_type: str) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", CHAT, HELLO_BODY, content_type=content_type))
        assert_refused(connection.reply(), 415, "application/json")
        assert_answers(connection)


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "zstd", "GZIP", "gzip, identity"])
def test_a_compressed_body_is_a_415(echo_pool: Pool, encoding: str) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", CHAT, gzip.compress(HELLO_BODY), content_encoding=encoding))
        assert_refused(connection.reply(), 415, "Compressed")
        assert_answers(connection)


def test_a_body_compressed_in_transfer_is_a_415(echo_pool: Pool) -> None:
    compressed = gzip.compress(HELLO_BODY)
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", CHAT, content_type="application/json", transfer_encoding="gzip, chunked"))
        connection.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(compressed), compressed))
        assert_refused(connection.reply(), 415)
        assert_answers(connection)


def test_identity_is_no_compression(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", CHAT, HELLO_BODY, content_encoding="identity"))
        assert connection.reply().status == 200


def test_a_chunked_body_is_put_together(echo_pool: Pool) -> None:
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in HELLO_BODY)
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", CHAT, content_type="application/json", transfer_encoding="chunked"))
        connection.send(chunks + b"0\r\n\r\n")
        assert connection.reply().json()["choices"][0]["message"]["content"] == "Hello"
        assert_answers(connection)


def test_a_trailer_is_no_header(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", CHAT, content_type="application/json", transfer_encoding="chunked"))
        connection.send(b"%x\r\n%s\r\n0\r\nx-request-id: trailed\r\n\r\n" % (len(HELLO_BODY), HELLO_BODY))
        reply = connection.reply()
        assert reply.status == 200
        assert reply.headers["x-request-id"] != ["trailed"]


# ---- what some clients do ----


def test_a_client_that_waits_for_100_continue_gets_it(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        whole = request("POST", CHAT, HELLO_BODY, expect="100-continue")
        connection.send(whole[: -len(HELLO_BODY)])
        assert connection.reply().status == 100
        connection.send(HELLO_BODY)
        assert connection.reply().status == 200
        assert_answers(connection)


def test_a_refusal_instead_of_100_continue_closes_since_the_body_may_come_or_not(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", "/nowhere", b"", content_length="5", expect="100-continue"))
        reply = connection.reply()
        assert_refused(reply, 404)
        assert reply.headers["connection"] == ["close"]
        assert connection.is_at_end()


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_wish_for_http_2_is_declined_without_losing_the_body(echo_pool: Pool, in_pieces: bool) -> None:
    """Java's own client sends it with the first request of every plain connection."""
    wish = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2_settings": "AAEAAEAAAAIAAAABAAMAAABk"}
    whole = request("POST", CHAT, HELLO_BODY, **wish) + request("GET", "/version", **wish)
    with RawConnection(echo_pool.url) as connection:
        for piece in [whole[at : at + 50] for at in range(0, len(whole), 50)] if in_pieces else [whole]:
            connection.send(piece)
        assert connection.reply().json()["choices"][0]["message"]["content"] == "Hello"
        assert "version" in connection.reply().json()
        assert_answers(connection)


def test_a_wish_for_http_2_with_a_chunked_body_is_declined_too(echo_pool: Pool) -> None:
    wish = {"connection": "Upgrade", "upgrade": "h2c", "content_type": "application/json"}
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", CHAT, transfer_encoding="chunked", **wish))
        connection.send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(HELLO_BODY), HELLO_BODY))
        assert connection.reply().json()["choices"][0]["message"]["content"] == "Hello"
        assert_answers(connection)


def test_a_websocket_handshake_is_answered_like_any_get(echo_pool: Pool) -> None:
    wish = {"connection": "Upgrade", "upgrade": "websocket", "sec_websocket_key": "eA==", "sec_websocket_version": "13"}
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("GET", CHAT, **wish))
        assert_refused(connection.reply(), 405)
        assert_answers(connection)


def test_blank_lines_before_a_request_are_forgiven(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(b"\r\n\r\n" + request("GET", "/version"))
        assert connection.reply().status == 200


def test_a_request_target_may_be_a_whole_url(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("GET", "http://somewhere.else:1234/version?x=y"))
        assert connection.reply().status == 200


def test_a_host_header_that_is_no_host_harms_nobody(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        for path, status in (("/version", 200), ("/nowhere", 404)):
            connection.send(f"GET {path} HTTP/1.1\r\nhost: [::1\r\n\r\n".encode())
            assert connection.reply().status == status


# ---- routes and methods ----


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/",
        "/v2/embed",
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/V1/chat/completions",
        "/v1/chat/./completions",
        "/nowhere",
        "/%00",
        "/%F0%9F%8E%89",
        "/%FF%FE",
        "/" + "long" * 5000,
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_an_unknown_path_is_a_404_in_our_shape(echo_pool: Pool, method: str, path: str) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request(method, path))
        reply = connection.reply()
        assert_refused(reply, 404, "No such route")
        assert len(reply.body) < 1000
        assert_answers(connection)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings", "/tokenize", "/v1/detokenize"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_a_wrong_method_is_a_405_that_says_which_are_right(echo_pool: Pool, method: str, path: str) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request(method, path))
        reply = connection.reply()
        assert_refused(reply, 405, method)
        assert reply.headers["allow"] == ["POST"]
        assert_answers(connection)


def test_a_post_to_a_route_that_is_read_is_a_405(echo_pool: Pool) -> None:
    for path in ("/health", "/ready", "/live", "/version", "/metrics", "/pool", "/v1/models", "/v1/models/sim"):
        with RawConnection(echo_pool.url) as connection:
            connection.send(request("POST", path, b"{}"))
            reply = connection.reply()
            assert_refused(reply, 405)
            assert reply.headers["allow"] == ["GET, HEAD"]
            assert_answers(connection)


def test_ping_may_be_posted(echo_pool: Pool) -> None:
    assert echo_pool.client.post("/ping").status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *((path, 200) for path in ("/health", "/ready", "/live", "/ping", "/version", "/v1/models", "/v1/models/sim")),
        ("/v1/models/other", 404),
        ("/nowhere", 404),
        (CHAT, 405),
        ("/tokenize", 405),
    ],
)
def test_head_gets_the_headers_and_no_body(echo_pool: Pool, path: str, status: int) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("HEAD", path))
        reply = connection.reply(to_head=True)
        assert reply.status == status
        assert int(reply.headers["content-length"][0]) > 0
        assert_answers(connection)  # a body would stand before the next status line


def test_a_query_changes_nothing(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", CHAT + "?beta=true&x=%FF&y", HELLO_BODY))
        assert connection.reply().status == 200


def test_a_path_may_be_percent_encoded(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", "/v1/%63hat/completions", HELLO_BODY))
        assert connection.reply().status == 200

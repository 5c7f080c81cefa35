"""What is no HTTP, is too much of it, or comes too slowly."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import StartPool
from tests.e2e.refusals import CHAT, HELLO, HELLO_BODY, assert_answers, assert_refused
from tests.pool import Pool, running_pool, wait_for
from tests.raw_http import RawConnection, request

pytestmark = pytest.mark.e2e

BODY_LIMIT = 200_000


@pytest.fixture(scope="module")
def strict_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """One API server with small limits, so that they can be met in a second."""
    flags = ["--api-server-count", "1", "--max-body-bytes", str(BODY_LIMIT), "--header-timeout", "1"]
    flags += ["--body-timeout", "1", "--max-model-len", "20000"]
    with running_pool(tmp_path_factory.mktemp("edge") / "pool.log", *flags, engine=["--mode", "echo"]) as pool:
        yield pool


def assert_serves(pool: Pool) -> None:
    with RawConnection(pool.url) as connection:
        assert_answers(connection)


# ---- what is no HTTP ----


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GARBAGE\r\n\r\n",
        b"FROB / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"GET http://host:99999/ HTTP/1.1\r\n\r\n",
        b"CONNECT host:443 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),  # TLS
        b"GET / HTTP/1.1\r\nbad header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\na: b\x00c\r\n\r\n",
        b"GET / HTTP/1.1\r\na: b\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\n: no name\r\n\r\n",
    ],
)
def test_what_is_not_http_is_answered_in_json_and_closed(strict_pool: Pool, nonsense: bytes) -> None:
    with RawConnection(strict_pool.url) as connection:
        connection.send(nonsense)
        assert_refused(connection.reply(), 400, "Invalid HTTP request")
        assert connection.is_at_end()
    assert_serves(strict_pool)


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: -5\r\n",
        b"content-length: +5\r\n",
        b"content-length: 0x5\r\n",
        b"content-length: 99999999999999999999999\r\n",
        b"transfer-encoding: gzip\r\n",
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
    ],
)
def test_a_body_of_doubtful_length_is_refused_and_nothing_after_it_is_believed(
    strict_pool: Pool, framing: bytes
) -> None:
    """Two readers that disagree on where a request ends are how requests are smuggled."""
    with RawConnection(strict_pool.url) as connection:
        smuggled = b"GET /pool HTTP/1.1\r\nhost: test\r\n\r\n"
        connection.send(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: test\r\n" + framing + b"\r\n" + smuggled)
        assert_refused(connection.reply(), 400)
        assert connection.is_at_end()
    assert_serves(strict_pool)


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"-1\r\n", b"5\r\nHelloX", b"ffffffffffffffffff\r\n"])
def test_a_broken_chunk_ends_the_request_with_a_400(strict_pool: Pool, chunk: bytes) -> None:
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("POST", CHAT, content_type="application/json", transfer_encoding="chunked") + chunk)
        assert_refused(connection.reply(), 400, "Invalid HTTP request")
        assert connection.is_at_end()
    assert_serves(strict_pool)


@given(st.binary(max_size=300), st.sampled_from([b"x", b"GET ", b"POST /v1/completions HTTP/1.1\r\n"]))
@settings(max_examples=100, deadline=None)
def test_no_bytes_are_answered_by_silence_or_by_a_500(strict_pool: Pool, noise: bytes, beginning: bytes) -> None:
    with RawConnection(strict_pool.url) as connection:
        connection.send(beginning + noise + b"\r\n\r\n")
        assert 200 <= connection.reply().status < 500


def test_nonsense_writes_nothing_into_the_log(strict_pool: Pool) -> None:
    before = strict_pool.log
    for _ in range(20):
        with RawConnection(strict_pool.url) as connection:
            connection.send(b"GARBAGE\r\n\r\n")
            connection.reply()
    assert strict_pool.log == before


# ---- too much ----


def test_a_header_of_a_megabyte_is_a_431_that_arrives(strict_pool: Pool) -> None:
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("GET", "/health", huge="x" * 1_000_000))
        assert_refused(connection.reply(), 431)
        assert connection.is_at_end()
    assert_serves(strict_pool)


def test_a_head_that_is_too_large_is_refused_even_where_it_arrives_in_one_piece(strict_pool: Pool) -> None:
    many = {f"h{number}": "x" * 1000 for number in range(80)}
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("GET", "/health", **many))
        assert_refused(connection.reply(), 431)


def test_a_head_just_below_the_limit_is_served(strict_pool: Pool) -> None:
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("GET", "/health", **{f"h{number}": "x" * 300 for number in range(200)}))
        assert connection.reply().status == 200


@pytest.mark.parametrize(("size", "status"), [(60_000, 200), (66_000, 431)])
def test_one_long_header_counts_once_however_it_arrives(strict_pool: Pool, size: int, status: int) -> None:
    data = request("GET", "/health", cookie="x" * size)
    with RawConnection(strict_pool.url) as connection:
        for start in range(0, len(data), 5_000):
            connection.send(data[start : start + 5_000])
        assert connection.reply().status == status


def test_a_hundred_thousand_headers_are_a_431(strict_pool: Pool) -> None:
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("GET", "/health", **{f"h{number}": "1" for number in range(100_000)}))
        assert_refused(connection.reply(), 431)
    assert_serves(strict_pool)


def test_a_url_of_seventy_thousand_letters_is_a_431(strict_pool: Pool) -> None:
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("GET", "/" + "a" * 70_000))
        assert_refused(connection.reply(), 431)


def test_a_large_body_before_a_small_head_is_not_counted_as_that_head(strict_pool: Pool) -> None:
    body = json.dumps({**HELLO, "user": "x" * 150_000}).encode()
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("POST", CHAT, body) + request("POST", CHAT, body)[:-1000])
        assert connection.reply().status == 200
        connection.send(body[-1000:])
        assert connection.reply().status == 200
        assert_answers(connection)


def test_a_body_that_is_announced_too_large_is_a_413_before_it_is_sent(strict_pool: Pool) -> None:
    with RawConnection(strict_pool.url) as connection:
        announced = request(
            "POST", CHAT, content_type="application/json", content_length=str(BODY_LIMIT + 1), expect="100-continue"
        )
        connection.send(announced)
        reply = connection.reply()
        assert_refused(reply, 413, f"larger than {BODY_LIMIT} bytes")
        assert reply.headers["connection"] == ["close"]
        assert connection.is_at_end()
    assert_serves(strict_pool)


def test_a_client_that_sends_a_large_body_without_looking_up_still_reads_the_413(strict_pool: Pool) -> None:
    """Closing on it at once would reset the connection, and the answer would be lost."""
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("POST", CHAT, b"x" * 30_000_000))
        assert_refused(connection.reply(), 413)
        assert connection.is_at_end()
    assert_serves(strict_pool)


def test_a_chunked_body_is_a_413_as_soon_as_it_is_too_large(strict_pool: Pool) -> None:
    piece = b"%x\r\n%s\r\n" % (10_000, b"x" * 10_000)
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("POST", CHAT, content_type="application/json", transfer_encoding="chunked"))
        connection.send(piece * (BODY_LIMIT // 10_000 + 1))  # and it has no end
        reply = connection.reply()
        assert_refused(reply, 413)
        assert reply.headers["connection"] == ["close"]
        assert connection.is_at_end()
    assert_serves(strict_pool)


def test_a_body_just_within_the_limit_is_served(strict_pool: Pool) -> None:
    body = json.dumps({**HELLO, "user": ""}).encode()
    body = body.replace(b'"user": ""', b'"user": "' + b"x" * (BODY_LIMIT - len(body)) + b'"')
    assert len(body) == BODY_LIMIT
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("POST", CHAT, body))
        assert connection.reply().status == 200
        assert_answers(connection)


def test_an_endless_body_to_a_route_that_wants_none_is_not_read_for_ever(strict_pool: Pool) -> None:
    piece = b"%x\r\n%s\r\n" % (10_000, b"x" * 10_000)
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("GET", "/version", transfer_encoding="chunked"))
        assert connection.reply().status == 200
        connection.send(piece * (BODY_LIMIT // 10_000 + 1))
        assert connection.is_at_end()


def test_the_body_of_a_refused_request_does_not_become_the_next_request(strict_pool: Pool) -> None:
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("POST", "/nowhere", b"GET /pool HTTP/1.1\r\nhost: test\r\n\r\n"))
        assert_refused(connection.reply(), 404)
        assert_answers(connection)


# ---- too slow ----


def test_headers_that_come_by_the_letter_are_a_408(strict_pool: Pool) -> None:
    """Each letter is a sign of life, and still the whole must arrive in time."""
    with RawConnection(strict_pool.url) as connection:
        connection.send(b"GET /health HTTP/1.1\r\na: ")
        assert_refused(connection.reply(), 408, "headers")
        assert connection.is_at_end()
    assert_serves(strict_pool)


def test_a_body_that_comes_by_the_letter_is_a_408(strict_pool: Pool) -> None:
    """No pause is long, and still nobody may hold a connection for as long as 32 MiB take that way."""
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("POST", CHAT, b"", content_length="1000"))
        for _ in range(1000):
            if connection.has_answer(0.1):
                break
            connection.send(b" ")
        assert_refused(connection.reply(), 408, "body")
        assert connection.is_at_end()
    assert_serves(strict_pool)


def test_what_a_connection_refuses_is_counted_by_status_and_logged_once_where_requests_are(
    start_pool: StartPool,
) -> None:
    flags = ("--api-server-count", "1", "--header-timeout", "1", "--access-log")
    with start_pool(*flags) as pool:
        slow, huge = b"GET /health HTTP/1.1\r\n", request("GET", "/health", huge="x" * 100_000)
        for status, sent in ((400, b"GARBAGE\r\n\r\n"), (400, b"X" * 100), (408, slow), (431, huge)):
            with RawConnection(pool.url) as connection:
                connection.send(sent)
                assert connection.reply().status == status
        counted = {status: pool.metric("connection_refusals_total", status=str(status)) for status in (400, 408, 431)}
        assert counted == {400: 2, 408: 1, 431: 1}
        wait_for(lambda: pool.log.count("no request: ") == 4, what="a line for each")
        assert pool.log.count("no request: 408 The request's headers did not arrive in time.") == 1
        assert "GARBAGE" not in pool.log
        assert pool.metric("http_responses_total", route="none") == 0


def test_a_body_that_stalls_is_a_408(strict_pool: Pool) -> None:
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("POST", CHAT, HELLO_BODY)[:-5])
        assert_refused(connection.reply(), 408, "body")
        assert connection.is_at_end()
    assert_serves(strict_pool)


def test_a_connection_that_never_says_anything_is_closed(strict_pool: Pool) -> None:
    with RawConnection(strict_pool.url) as connection:
        assert connection.is_at_end()


def test_an_answered_request_whose_body_never_ends_is_let_go(strict_pool: Pool) -> None:
    with RawConnection(strict_pool.url) as connection:
        connection.send(request("POST", "/nowhere", b"xx", content_length="100"))
        assert_refused(connection.reply(), 404)
        assert connection.is_at_end()

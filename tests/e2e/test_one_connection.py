"""One connection, many requests: in turn, ahead of their turn, and of protocols of old."""

import json
import re
import threading

import psutil
import pytest

from tests.conftest import StartPool
from tests.e2e.refusals import CHAT, HELLO, HELLO_BODY, assert_answers, assert_refused
from tests.pool import ECHO_TEMPLATE, Pool
from tests.raw_http import RawConnection, request

pytestmark = pytest.mark.e2e


def test_pipelined_requests_are_all_answered_in_order(echo_pool: Pool) -> None:
    def chat(text: str) -> bytes:
        body = {"messages": [{"role": "user", "content": text}], "stream": len(text) % 2 == 0}
        return request("POST", CHAT, json.dumps(body).encode())

    texts = [letter * (1 + number * 37 % 50) for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz")]
    with RawConnection(echo_pool.url) as connection:
        connection.send(b"".join(chat(text) for text in texts))
        for text in texts:
            reply = connection.reply()
            assert reply.status == 200
            said = re.findall(r'"content":"(\w*)"', reply.body.decode())
            assert "".join(said) == text


def test_nonsense_after_a_good_request_does_not_take_its_answer_away(echo_pool: Pool) -> None:
    for body in (HELLO, {**HELLO, "stream": True}):
        with RawConnection(echo_pool.url) as connection:
            connection.send(request("POST", CHAT, json.dumps(body).encode()) + b"GARBAGE\r\n\r\n")
            good = connection.reply()
            assert good.status == 200
            assert b"finish_reason" in good.body
            assert_refused(connection.reply(), 400, "Invalid HTTP request")
            assert connection.is_at_end()


def test_a_broken_body_behind_a_good_request_is_refused_in_its_turn(echo_pool: Pool) -> None:
    broken = request("POST", CHAT, content_type="application/json", transfer_encoding="chunked") + b"zz\r\n"
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", CHAT, HELLO_BODY) + broken)
        assert connection.reply().status == 200
        assert_refused(connection.reply(), 400)
        assert connection.is_at_end()


def test_refused_requests_leave_the_connection_open(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        for status, refused in (
            (400, request("POST", CHAT, b"{")),
            (415, request("POST", CHAT, HELLO_BODY, content_type="text/plain")),
            (404, request("POST", CHAT, b'{"model":"other","messages":[]}')),
            (404, request("GET", "/nowhere")),
            (405, request("GET", CHAT)),
            (415, request("POST", CHAT, HELLO_BODY, content_encoding="gzip")),
        ):
            connection.send(refused)
            assert_refused(connection.reply(), status)
            assert_answers(connection)


def test_connection_close_is_obeyed(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("GET", "/version", connection="close") + request("GET", "/version"))
        reply = connection.reply()
        assert reply.headers["connection"] == ["close"]
        assert connection.is_at_end()


def test_http_1_0_is_answered_and_closed(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        connection.send(b"GET /version HTTP/1.0\r\n\r\n")
        assert connection.reply().status == 200
        assert connection.is_at_end()


def test_http_1_0_is_not_told_to_continue(echo_pool: Pool) -> None:
    with RawConnection(echo_pool.url) as connection:
        asked = request("POST", CHAT, HELLO_BODY, expect="100-continue")
        connection.send(asked.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert connection.reply().status == 200
        assert connection.is_at_end()


def test_a_stream_to_http_1_0_has_no_chunks_and_ends_with_the_connection(echo_pool: Pool) -> None:
    body = json.dumps({**HELLO, "stream": True}).encode()
    with RawConnection(echo_pool.url) as connection:
        connection.send(request("POST", CHAT, body).replace(b"HTTP/1.1", b"HTTP/1.0"))
        reply = connection.reply_to_its_end()
        assert reply.status == 200
        assert "transfer-encoding" not in reply.headers
        assert reply.headers["connection"] == ["close"]
        *events, end = reply.body.split(b"\n\n")
        assert end == b""
        assert all(event.startswith(b"data: ") for event in events)
        assert events[-1] == b"data: [DONE]"
        said = re.findall(r'"content":"(\w*)"', reply.body.decode())
        assert "".join(said) == "Hello"


def test_thousands_of_pipelined_requests_are_answered_in_order_by_little_memory(start_pool: StartPool) -> None:
    """Each of them took three kilobytes before its turn came, and every answer let the loop read thousands more."""
    count = 30_000
    data = b"".join(request("GET", "/live", x_request_id=f"a{number}") for number in range(count))
    with start_pool("--api-server-count", "1") as pool, RawConnection(pool.url) as connection:
        [api_server] = map(psutil.Process, pool.worker_pids())
        before = most = api_server.memory_info().rss
        sender = threading.Thread(target=connection.send, args=(data,))
        sender.start()
        for number in range(count):
            assert connection.reply().headers["x-request-id"] == [f"a{number}"]
            if number % 1000 == 0:
                most = max(most, api_server.memory_info().rss)
        sender.join()
        connection.send(request("GET", "/version"))
        assert connection.reply().status == 200
    assert most - before < 20 * 1024 * 1024


def test_a_head_that_is_not_looked_at_before_its_turn_is_not_too_slow(start_pool: StartPool) -> None:
    flags = ("--api-server-count", "1", "--header-timeout", "1", "--chat-template", ECHO_TEMPLATE)
    said = "a" * 30
    slow = request("POST", CHAT, json.dumps({"messages": [{"role": "user", "content": said}]}).encode())
    many = [request("GET", "/version", x=str(number)) for number in range(500)]
    with (
        start_pool(*flags, engine=["--mode", "echo", "--step-ms", "100"]) as pool,
        RawConnection(pool.url) as connection,
    ):
        connection.send(slow + b"".join(many))
        assert connection.reply().json()["choices"][0]["message"]["content"] == said
        for _ in many:
            assert connection.reply().status == 200

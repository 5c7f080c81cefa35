"""What the benchmarks' client reads, however it is cut, and what it sends."""

import json

import pytest

from tests.bench_server import STREAM_HEAD, chat_event, chat_stream, whole
from tests.script_parts import load_parts

client, parsing = load_parts("benchlib", "client", "parsing")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_a_stream_is_read_alike_however_it_is_cut(size: int) -> None:
    data = chat_stream(4, 20)
    parser, events = parsing.ResponseParser(), parsing.EventScanner()
    for at in range(0, len(data), size):
        events.feed(parser.feed(data[at : at + size]), float(at))
    assert (parser.status, parser.is_event_stream, parser.is_done, parser.closes) == (200, True, True, False)
    assert len(events.token_times) == 4
    assert events.is_done
    assert json.loads(events.last_document)["usage"] == {"prompt_tokens": 20, "completion_tokens": 4}


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_a_body_of_known_length_is_read_alike_however_it_is_cut(size: int) -> None:
    data = whole(429, {"error": "busy"})
    parser = parsing.ResponseParser()
    body = b"".join(parser.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert (parser.status, parser.is_done, json.loads(body)) == (429, True, {"error": "busy"})


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    parser = parsing.ResponseParser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\n\r\nall") == b"all"
    assert (parser.is_done, parser.closes, parser.end()) == (False, True, True)


@pytest.mark.parametrize("data", [b"SSH-2.0\r\n\r\n", STREAM_HEAD + b"xyz\r\n", whole(200, {}) + b"more"])
def test_what_is_not_our_reply_is_an_error(data: bytes) -> None:
    with pytest.raises(parsing.ReplyError):
        parsing.ResponseParser().feed(data)


def test_token_events_have_the_time_of_the_buffer_that_ended_them() -> None:
    events = parsing.EventScanner()
    events.feed(chat_event(role="assistant", content="") + chat_event(content="a") + b"data: {", 1.0)
    events.feed(chat_event(content="b").removeprefix(b"data: {") + chat_event(content=""), 2.0)
    events.feed(b": keep-alive\n\n" + chat_event(reasoning_content="c"), 3.0)
    assert events.token_times == [1.0, 2.0, 2.0, 3.0]


def test_events_may_end_in_carriage_returns() -> None:
    events = parsing.EventScanner()
    for piece in (b'data: {"choices":[{"text":"a"}]}\r', b'\n\r\ndata: {"choices":[{"text":"b"}]}\r\n\r', b"\n"):
        events.feed(piece, 1.0)
    assert len(events.token_times) == 2


def test_generated_text_that_looks_like_an_end_or_a_key_is_text() -> None:
    events = parsing.EventScanner()
    events.feed(chat_event(content='"finish_reason":"stop"') + chat_event(content='data: [DONE] "role":"x"'), 1.0)
    assert (len(events.token_times), events.is_done) == (2, False)


def test_a_request_is_ready_made_and_carries_the_key() -> None:
    target = client.Target.parse("http://name:81/base/v1/", api_key="secret")
    assert target.request("POST", "/v1/completions", body=b"{}").decode().split("\r\n") == [
        "POST /base/v1/completions HTTP/1.1",
        "Host: name:81",
        "Accept: */*",
        "Authorization: Bearer secret",
        "Content-Type: application/json",
        "Content-Length: 2",
        "",
        "{}",
    ]

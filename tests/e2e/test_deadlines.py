"""A request's time limit: the operator's or the client's, whichever is less; what is not done by then is aborted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartPool
from tests.e2e.one_worker import MEGABYTE, bench_of, prose
from tests.e2e.refusals import CHAT, COMPLETIONS, EMBEDDINGS, HI, TOKENIZE, assert_refused, error_of
from tests.pool import Pool, running_pool, wait_for
from tests.raw_http import RawConnection, request
from tests.streams import OpenRequest, text_of
from tests.streams import error_of as stream_error

pytestmark = pytest.mark.e2e

LONG: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True}
LONG_OF = {CHAT: LONG | {"messages": HI}, COMPLETIONS: LONG | {"prompt": "one"}}


def within(milliseconds: int) -> dict[str, str]:
    return {"x-request-timeout-ms": str(milliseconds)}


@pytest.fixture(scope="module")
def slow_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Two requests run at a time, twenty steps a second."""
    output = tmp_path_factory.mktemp("slow") / "pool.log"
    flags = ("--api-server-count", "2", "--max-model-len", "4096", "--max-inflight", "10")
    with running_pool(output, *flags, engine=["--step-ms", "50", "--max-running", "2"]) as pool:
        yield pool
        assert "Traceback" not in pool.log


def assert_nothing_is_left(pool: Pool) -> None:
    pool.wait_idle(2)
    wait_for(lambda: pool.metric("admitted_requests") == 0, 2, "no admitted request")


@pytest.mark.parametrize("path", LONG_OF)
@pytest.mark.parametrize("n", [1, 4])
def test_a_whole_answer_that_is_not_ready_in_time_is_a_504(slow_pool: Pool, path: str, n: int) -> None:
    before = slow_pool.metric("deadline_aborts_total")
    error = error_of(slow_pool.post(path, LONG_OF[path] | {"n": n}, **within(300)), 504)
    assert error["type"] == "timeout_error"
    assert "0.3 seconds" in error["message"]
    assert_nothing_is_left(slow_pool)
    assert slow_pool.metric("deadline_aborts_total") == before + 1
    assert slow_pool.metric("http_responses_total", route=path, status="504") > 0


@pytest.mark.parametrize("path", LONG_OF)
def test_a_stream_that_is_not_done_in_time_ends_with_an_error(slow_pool: Pool, path: str) -> None:
    response = slow_pool.post(path, LONG_OF[path] | {"stream": True}, **within(500))
    assert response.status_code == 200
    *events, error, done = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    assert done == "[DONE]"
    assert json.loads(error)["error"] == {
        "message": "The answer was not ready within 0.5 seconds, the request's time limit.",
        "type": "timeout_error",
        "param": None,
        "code": 504,
    }
    assert text_of([json.loads(event) for event in events])
    assert_nothing_is_left(slow_pool)


def test_what_waits_in_the_engine_leaves_its_queue(slow_pool: Pool) -> None:
    with OpenRequest(slow_pool.url, COMPLETIONS, LONG_OF[COMPLETIONS] | {"n": 2, "stream": True}) as busy:
        busy.read_some()
        error_of(slow_pool.post(COMPLETIONS, LONG_OF[COMPLETIONS], **within(200)), 504)
        streamed = slow_pool.post(COMPLETIONS, LONG_OF[COMPLETIONS] | {"stream": True}, **within(200))
        assert streamed.status_code == 200  # it was accepted
        assert '"code":504' in streamed.text
        wait_for(lambda: slow_pool.engine()["waiting"] == 0, 2, "an empty queue")
        assert slow_pool.engine()["running"] == 2
        assert busy.read_some()
    assert_nothing_is_left(slow_pool)


def test_an_answer_in_time_is_as_without_a_limit(slow_pool: Pool) -> None:
    body = {"messages": HI, "max_tokens": 3}
    limited, free = slow_pool.post(CHAT, body, **within(20_000)), slow_pool.post(CHAT, body)
    assert limited.status_code == 200
    assert limited.json()["choices"] == free.json()["choices"]


@pytest.mark.parametrize("sent", ["0", "-1", "1.5", "soon", "1e3", "99999999999", "1,2", "٣"])
@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS, TOKENIZE])
def test_a_limit_that_is_no_number_of_milliseconds_is_a_400(slow_pool: Pool, path: str, sent: str) -> None:
    with RawConnection(slow_pool.url) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
        connection.send(f"{head}x-request-timeout-ms: {sent}\r\n\r\n{{}}".encode())
        reply = connection.reply()
        assert_refused(reply, 400, "x-request-timeout-ms")
        assert reply.error["param"] == "x-request-timeout-ms"


def test_a_body_that_is_not_there_by_the_deadline_is_a_504_and_the_connection_is_still_in_step(slow_pool: Pool) -> None:
    body = json.dumps({"messages": HI, "max_tokens": 2}).encode()
    with RawConnection(slow_pool.url) as connection:
        whole = request("POST", CHAT, body, x_request_timeout_ms="200")
        connection.send(whole[:-5])
        assert_refused(connection.reply(), 504)
        connection.send(whole[-5:])
        connection.send(request("POST", CHAT, body))
        assert connection.reply().status == 200


def test_a_stream_that_nobody_reads_is_aborted_all_the_same(start_pool: StartPool) -> None:
    """Its task stands in the middle of a write and hears of nothing; the engine's work ends on time."""
    flags = ("--api-server-count", "1", "--max-model-len", "1000000", "--request-timeout", "3")
    with start_pool(*flags, engine=["--step-ms", "1", "--tokens-per-step", "50"]) as pool:
        body = {
            "prompt": "x" * 2000,
            "ignore_eos": True,
            "stream": True,
            "max_tokens": 900_000,
            "return_token_ids": True,
        }
        with OpenRequest(pool.url, COMPLETIONS, body, receive_buffer=4096) as unread:
            wait_for(lambda: pool.engine()["running"] == 1, 5, "a running request")
            pool.wait_idle(8)
            assert pool.metric("deadline_aborts_total") == 1
            assert stream_error(unread.events())["code"] == 504


def test_the_smaller_of_both_limits_wins(start_pool: StartPool) -> None:
    with start_pool("--api-server-count", "1", "--request-timeout", "0.5", engine=["--step-ms", "50"]) as pool:
        for headers, seconds in (({}, "0.5 seconds"), (within(100), "0.1 seconds"), (within(60_000), "0.5 seconds")):
            error = error_of(pool.post(COMPLETIONS, LONG_OF[COMPLETIONS], **headers), 504)
            assert seconds in error["message"]
        pool.wait_idle(2)


def test_embeddings_have_a_time_limit_too(start_pool: StartPool) -> None:
    engine = ["--task", "embed", "--step-ms", "3000", "--max-running", "1"]
    with start_pool("--api-server-count", "1", engine=engine) as pool:
        error_of(pool.post(EMBEDDINGS, {"input": ["one", "two", "three"]}, **within(200)), 504)
        wait_for(lambda: pool.engine()["waiting"] == 0, 2, "an empty queue")


def test_a_prompt_that_takes_too_long_to_encode_never_reaches_the_engine(tmp_path: Path) -> None:
    with bench_of(tmp_path, "--tokenizer-backend", "hf") as bench, bench.noting() as arrived:
        body = {"prompt": prose(3 * MEGABYTE, 1), "max_tokens": 1}
        error_of(bench.pool.post(COMPLETIONS, body, **within(150)), 504)
        assert bench.completion("next").status_code == 200
    assert len(arrived) == 1

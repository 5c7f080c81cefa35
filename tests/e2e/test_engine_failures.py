"""An engine that fails: each request still ends, with a status or with an error in its stream."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.conftest import StartPool
from tests.e2e.refusals import CHAT, COMPLETIONS, GENERATING, error_of, good, one_connection, post, refused
from tests.pool import ECHO_TEMPLATE, Pool, running_pool, wait_for
from tests.streams import OpenRequest, text_of
from tests.streams import error_of as error_in

pytestmark = pytest.mark.e2e

# Control characters that set off the faulty pool's faults, as token ids and as text.
FAILS_AT_ONCE, FAILS_LATER, IS_REFUSED, FAILS_LATE = 1, 2, 3, 4


@pytest.fixture(scope="module")
def faulty_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """An engine that fails on demand: a prompt that holds a fault's token sets it off."""
    faults = (f"error:{FAILS_AT_ONCE}:0", f"error:{FAILS_LATER}:3", f"refuse:{IS_REFUSED}:0")
    # A step takes a while, so that what fails later fails after the headers have left.
    engine = ["--mode", "echo", "--step-ms", "5", *(word for fault in faults for word in ("--fault", fault))]
    flags = ("--api-server-count", "1", "--chat-template", ECHO_TEMPLATE)
    with running_pool(tmp_path_factory.mktemp("faulty") / "pool.log", *flags, engine=engine) as pool:
        yield pool


def chat_of(*token_ids: int, **fields: Any) -> dict[str, Any]:
    text = "".join(map(chr, token_ids))
    return {"messages": [{"role": "user", "content": f"{text}abcdef"}], "max_tokens": 8, **fields}


@pytest.mark.parametrize("stream", [False, True])
def test_zero_choices_are_refused_before_a_stream_begins(echo_client: httpx.Client, stream: bool) -> None:
    refused(echo_client, CHAT, good(CHAT, n=0, stream=stream), "n")


def test_a_failure_of_the_engine_is_a_500_with_its_own_words_and_no_traceback(faulty_pool: Pool) -> None:
    error = error_of(faulty_pool.post(CHAT, chat_of(FAILS_AT_ONCE)), 500)
    assert error["type"] == "InternalServerError"
    assert "Traceback" not in error["message"]
    assert faulty_pool.post(CHAT, chat_of(65)).status_code == 200


def test_a_refusal_of_the_engine_is_a_503_that_says_when_to_come_again(faulty_pool: Pool) -> None:
    response = faulty_pool.post(CHAT, chat_of(IS_REFUSED))
    assert error_of(response, 503)["type"] == "ServiceUnavailableError"
    assert int(response.headers["retry-after"]) >= 1
    assert faulty_pool.post(CHAT, chat_of(65)).status_code == 200


@pytest.mark.parametrize("path", GENERATING)
@pytest.mark.parametrize("fault", [FAILS_AT_ONCE, FAILS_LATER])
def test_a_stream_that_fails_ends_with_an_error_event_and_done(faulty_pool: Pool, path: str, fault: int) -> None:
    body = chat_of(fault, stream=True)
    if path == COMPLETIONS:
        body = {"prompt": body["messages"][0]["content"], "max_tokens": 8, "stream": True}
    response = faulty_pool.post(path, body)
    if response.status_code == 500:  # it failed before its first byte
        assert fault == FAILS_AT_ONCE
        error_of(response, 500)
        return
    frames = response.text.split("\n\n")
    assert all(frame.startswith("data: ") for frame in frames[:-1])
    assert frames[-2:] == ["data: [DONE]", ""]
    error = json.loads(frames[-3].removeprefix("data: "))["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == 500
    assert 'finish_reason":"' not in response.text
    assert faulty_pool.post(CHAT, chat_of(65)).status_code == 200


def test_one_failing_choice_does_not_touch_the_next_request_of_the_connection(faulty_pool: Pool) -> None:
    with one_connection(faulty_pool) as client:
        for _ in range(20):
            error_of(post(client, CHAT, chat_of(FAILS_LATER)), 500)
            assert post(client, CHAT, chat_of(65)).json()["choices"][0]["message"]["content"] == "Aabcdef"


def test_more_than_the_queue_holds_is_a_503_at_once_and_the_rest_is_served(start_pool: StartPool) -> None:
    engine = ["--mode", "echo", "--max-running", "1", "--max-waiting", "3", "--step-ms", "50"]
    with start_pool("--api-server-count", "2", engine=engine) as pool:
        body = chat_of(65, max_tokens=4, ignore_eos=True)
        with ThreadPoolExecutor(20) as executor, httpx.Client(base_url=pool.url, timeout=60) as client:
            responses = list(executor.map(lambda _: post(client, CHAT, body), range(20)))
        served = [response for response in responses if response.status_code == 200]
        turned_away = [response for response in responses if response.status_code != 200]
        assert len(served) >= 3
        assert turned_away
        for response in turned_away:
            assert error_of(response, 503)["type"] == "ServiceUnavailableError"
            assert int(response.headers["retry-after"]) >= 1
        assert pool.post(CHAT, body).status_code == 200


def busy_processes(pool: Pool) -> list[int]:
    return [process["pid"] for process in pool.pool()["processes"] if process["engine_requests"]]


def test_what_was_made_before_a_failure_is_told_also_if_both_arrive_at_once(start_pool: StartPool) -> None:
    engine = ["--mode", "echo", "--step-ms", "10", "--fault", f"error:{FAILS_LATE}:30"]
    with start_pool("--api-server-count", "2", "--chat-template", ECHO_TEMPLATE, engine=engine) as pool:
        body = {"messages": [{"role": "user", "content": chr(FAILS_LATE) + "a" * 40}], "stream": True}
        with OpenRequest(pool.url, CHAT, body) as stream:
            assert stream.read_some()
            [pid] = wait_for(lambda: busy_processes(pool), what="a busy API server on the board")
            os.kill(pid, signal.SIGSTOP)
            try:
                pool.wait_idle()
            finally:
                os.kill(pid, signal.SIGCONT)
            events = stream.events()
        assert error_in(events)["code"] == 500
        assert text_of(events) == chr(FAILS_LATE) + "a" * 29

"""Responses in the background: made by one API server, followed and cancelled through any other."""

from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response

from tests.e2e.responses_clients import FAILS_LATER, RESPONSES, Worker, valid
from tests.pool import Pool, wait_for
from tests.responses_grammar import check, parsed

pytestmark = pytest.mark.e2e


@pytest.fixture
def pool(responses_pool: Pool) -> Pool:
    return responses_pool


def finished(worker: Worker, response_id: str) -> Any:
    def look() -> Any:
        response = worker.responses.retrieve(response_id)
        return response if response.status not in ("queued", "in_progress") else None

    return wait_for(look, 20)


def test_a_response_in_the_background_goes_on_when_its_client_has_left(pool: Pool, workers: list[Worker]) -> None:
    with httpx.Client(base_url=pool.url) as client:
        reply = client.post(RESPONSES, json={"input": "x" * 100, "background": True})
    document = reply.json()
    with pytest.raises(openai.BadRequestError) as early:  # at once: the class below takes a while to be made
        workers[0].responses.create(model="sim", input="x", previous_response_id=document["id"])
    assert early.value.param == "previous_response_id"
    begun = Response.model_validate(document, strict=True)
    assert (begun.status, begun.background, begun.output) == ("in_progress", True, [])
    done = finished(workers[1], begun.id)
    assert (done.status, done.output_text) == ("completed", "x" * 100)
    assert valid(done).usage.output_tokens == 101
    assert workers[2].responses.create(model="sim", input="y", previous_response_id=begun.id).output_text.endswith("xy")


def test_the_pool_shows_what_runs_in_the_background_apart(pool: Pool, workers: list[Worker]) -> None:
    def shown(name: str) -> int:
        return sum(process[name] for process in pool.pool()["processes"])

    begun = workers[0].responses.create(model="sim", input="x" * 2000, background=True)
    wait_for(lambda: pool.engine()["running"] == 1)
    assert (shown("background"), shown("in_flight")) == (1, 1)  # and this question
    assert pool.metric("background_runs") == 1
    workers[1].responses.cancel(begun.id)
    wait_for(lambda: shown("background") == 0, 5, "nothing in the background")


@pytest.mark.exercises("openai-python", "/v1/responses", "in the background, cancelled")
def test_a_response_in_the_background_is_cancelled_through_any_api_server(pool: Pool, workers: list[Worker]) -> None:
    for worker in workers:
        begun = workers[0].responses.create(model="sim", input="x" * 2000, background=True)
        wait_for(lambda: pool.engine()["running"] == 1)
        assert valid(worker.responses.cancel(begun.id)).status == "cancelled"
        pool.wait_idle()
        for another in workers:
            assert another.responses.retrieve(begun.id).status == "cancelled"
        assert worker.responses.cancel(begun.id).status == "cancelled"  # once more changes nothing
        wait_for(lambda: workers[1].responses.retrieve(begun.id).output_text)  # noqa: B023  # called at once; as far as it came


def test_a_response_in_the_background_that_is_deleted_ends(pool: Pool, workers: list[Worker]) -> None:
    begun = workers[0].responses.create(model="sim", input="x" * 2000, background=True)
    wait_for(lambda: pool.engine()["running"] == 1)
    workers[1].responses.delete(begun.id)
    pool.wait_idle()
    with pytest.raises(openai.NotFoundError):
        workers[0].responses.retrieve(begun.id)


def test_a_response_in_the_background_that_fails_says_why(workers: list[Worker]) -> None:
    begun = workers[0].responses.create(model="sim", input=FAILS_LATER + "abcdef", background=True)
    done = finished(workers[1], begun.id)
    assert done.status == "failed"
    assert valid(done).error.code == "server_error"


def test_a_stream_in_the_background_is_followed_from_any_event_on_any_api_server(workers: list[Worker]) -> None:
    begun = workers[0].responses.create(model="sim", input="x" * 200, background=True, stream=True)
    seen = [valid(next(begun)).to_dict() for _ in range(10)]
    begun.close()
    response_id = seen[0]["response"]["id"]
    rest: list[dict[str, Any]] = []
    for worker in workers:  # while it is being made, by one of them
        response = worker.http.get(f"{RESPONSES}/{response_id}?stream=true&starting_after=9")
        rest = parsed(response.content)
        check(rest, first=10)
        check([*seen, *rest])
        assert rest[-1]["response"]["output"][0]["content"][0]["text"] == "x" * 200
    again = parsed(workers[2].http.get(f"{RESPONSES}/{response_id}?stream=true").content)  # and when it is done
    assert again == [*seen, *rest]
    assert parsed(workers[3].http.get(f"{RESPONSES}/{response_id}?stream=1&starting_after=0").content) == again[1:]
    helper = workers[1].responses.retrieve(response_id, stream=True, starting_after=len(again) - 2)
    assert [event.type for event in helper] == ["response.completed"]


def test_a_stream_that_is_followed_ends_with_a_cancellation_wherever_that_came_from(
    pool: Pool, workers: list[Worker]
) -> None:
    begun = workers[0].responses.create(model="sim", input="x" * 2000, background=True, stream=True)
    events = [next(begun).to_dict() for _ in range(8)]
    workers[1].responses.cancel(events[0]["response"]["id"])
    events += [event.to_dict() for event in begun]
    check(events)
    assert (events[-1]["type"], events[-1]["response"]["status"]) == ("response.incomplete", "cancelled")
    pool.wait_idle()


def test_a_followed_stream_whose_response_is_deleted_ends_with_an_error(workers: list[Worker]) -> None:
    begun = workers[0].responses.create(model="sim", input="x" * 2000, background=True, stream=True)
    events = [next(begun).to_dict() for _ in range(8)]
    workers[1].responses.delete(events[0]["response"]["id"])
    events += [event.to_dict() for event in begun]
    assert events[-1]["type"] == "error"
    assert [event["sequence_number"] for event in events] == list(range(len(events)))

"""The Responses API by the official client, against four API servers: one response, whichever of them answers."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, cast

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseItemList
from pydantic import BaseModel

from tests.conftest import StartPool
from tests.pool import ECHO_TEMPLATE, Pool, running_pool, wait_for
from tests.responses_grammar import anonymous, check, parsed
from tests.streams import OpenRequest

pytestmark = pytest.mark.e2e

RESPONSES = "/v1/responses"
FAILS_AT_ONCE, FAILS_LATER, IS_REFUSED = "\x01", "\x02", "\x03"
"""Control characters that set off a fault of the engine."""


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Four API servers and a sim that says what it was told, 3 ms a token."""
    faults = (f"error:{ord(FAILS_AT_ONCE)}:0", f"error:{ord(FAILS_LATER)}:3", f"refuse:{ord(IS_REFUSED)}:0")
    engine = ["--mode", "echo", "--step-ms", "3", *(word for fault in faults for word in ("--fault", fault))]
    flags = ("--api-server-count", "4", "--chat-template", ECHO_TEMPLATE, "--max-model-len", "4096")
    with running_pool(tmp_path_factory.mktemp("responses") / "pool.log", *flags, engine=engine) as pool:
        yield pool


class Worker:
    """One API server, by a connection to it that stays open."""

    def __init__(self, pool: Pool) -> None:
        self.http = httpx.Client(base_url=pool.url, timeout=30.0, limits=httpx.Limits(max_connections=1))
        self.openai = openai.OpenAI(
            base_url=pool.url + "/v1", api_key="none", max_retries=0, http_client=cast(Any, self.http), timeout=30.0
        )
        self.name = self.http.get("/live").headers["x-request-id"].split("-")[1]

    @property
    def responses(self) -> Any:
        return self.openai.responses


@pytest.fixture
def workers(pool: Pool) -> Iterator[list[Worker]]:
    """All four, each by its own connection: whoever has fewer takes the next."""
    pool.client.close()
    pool.client = httpx.Client(base_url=pool.url, timeout=30.0)
    with ExitStack() as stack:
        found: dict[str, Worker] = {}

        def another() -> bool:
            worker = Worker(pool)
            stack.callback(worker.openai.close)
            found.setdefault(worker.name, worker)
            return len(found) == 4

        wait_for(another, what="a connection to each API server")
        yield list(found.values())


def valid(reply: Any) -> Any:
    """The reply, validated strictly by its own class. Raises pydantic's ValidationError."""
    model = cast(BaseModel, reply)
    type(model).model_validate(model.model_dump(warnings="error", by_alias=True), by_alias=True)
    return reply


def stream_of(pool: Pool, **fields: Any) -> list[dict[str, Any]]:
    """The events of a whole stream, its grammar checked."""
    response = pool.client.post(RESPONSES, json={"stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    events = parsed(response.content)
    check(events)
    return events


# ---- one response, whole and streamed -------------------------------------------------------------------------------

TOOL = {"type": "function", "name": "look_up", "parameters": {"type": "object", "properties": {}}, "strict": None}
CREATES: list[dict[str, Any]] = [
    {"input": "Grüße 🎉"},
    {"input": "Grüße 🎉", "max_output_tokens": 3},
    {"input": "Hello", "top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    {"input": "🎉", "include": ["message.output_text.logprobs"]},
    {"input": "Hello", "stop": "ll", "instructions": "Be brief.", "temperature": 0, "top_p": 0.5},
    {"input": "Hello", "tools": [TOOL], "tool_choice": "auto", "metadata": {"a": "b"}, "user": "me"},
    {"input": "Hello", "reasoning": {"effort": "low", "summary": "auto"}, "truncation": "auto", "store": False},
    {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"role": "assistant", "content": "b"},
        ]
    },
]


@pytest.mark.parametrize("fields", CREATES, ids=str)
def test_a_response_is_valid_and_the_same_whole_and_streamed(pool: Pool, fields: dict[str, Any]) -> None:
    extra = {"stop": fields["stop"]} if "stop" in fields else {}
    known = {name: value for name, value in fields.items() if name != "stop"}
    told = valid(pool.openai.responses.create(model="sim", extra_body=extra, **known))
    assert told.output_text
    last = stream_of(pool, **fields)[-1]
    assert anonymous(last["response"]) == anonymous(told.to_dict() | {"model": last["response"]["model"]})
    with pool.openai.responses.stream(model="sim", extra_body=extra, **known) as stream:
        for event in stream:
            if event.type != "response.completed":  # the helper's own class, with what it parsed
                valid(event)
        text = ""
        if told.status == "completed":
            text = stream.get_final_response().output_text
    assert text == (told.output_text if told.status == "completed" else "")


def test_the_raw_iterators_events_are_valid(pool: Pool) -> None:
    events = [valid(event) for event in pool.openai.responses.create(model="sim", input="Hello", stream=True)]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello"


def test_what_ends_by_itself_is_completed_and_what_is_cut_is_incomplete(pool: Pool) -> None:
    done = pool.openai.responses.create(model="sim", input="Hello")
    assert (done.status, done.incomplete_details, done.output_text) == ("completed", None, "Hello")
    assert done.completed_at is not None
    cut = pool.openai.responses.create(model="sim", input="Hello", max_output_tokens=2)
    assert (cut.status, cut.output_text) == ("incomplete", "He")
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert cut.usage is not None
    assert (cut.usage.input_tokens, cut.usage.output_tokens, cut.usage.total_tokens) == (5, 2, 7)


def test_logprobs_are_those_of_the_tokens(pool: Pool) -> None:
    reply = pool.openai.responses.create(
        model="sim", input="é", top_logprobs=1, include=["message.output_text.logprobs"]
    )
    document: Any = reply.to_dict()
    entries = document["output"][0]["content"][0]["logprobs"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries)[:2] == "é".encode()
    assert all(len(entry["top_logprobs"]) == 1 for entry in entries)


# ---- streams, however they end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [FAILS_AT_ONCE, FAILS_LATER], ids=["at once", "later"])
@pytest.mark.parametrize("store", [True, False])
def test_a_stream_that_fails_says_so_in_its_last_event(pool: Pool, fault: str, store: bool) -> None:
    response = pool.client.post(RESPONSES, json={"input": f"{fault}abcdef", "store": store, "stream": True})
    if fault == FAILS_AT_ONCE and response.status_code == 500:
        return  # it failed before the headers left
    events = parsed(response.content)
    check(events)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    found = pool.client.get(f"{RESPONSES}/{events[0]['response']['id']}")
    assert found.status_code == (200 if store else 404)
    if store:
        assert found.json() == events[-1]["response"]


@pytest.mark.parametrize("fields", [{}, {"background": True}, {"stream": True}], ids=str)
def test_a_refusal_keeps_its_status(pool: Pool, fields: dict[str, Any]) -> None:
    response = pool.client.post(RESPONSES, json={"input": "x" * 5000, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_a_whole_answer_that_fails_has_an_errors_status(pool: Pool) -> None:
    with pytest.raises(openai.InternalServerError) as failed:
        pool.openai.responses.create(model="sim", input=FAILS_LATER + "abcdef")
    assert failed.value.status_code == 500
    with pytest.raises(openai.InternalServerError) as refused:
        pool.openai.responses.create(model="sim", input=IS_REFUSED)
    assert refused.value.status_code == 503


def test_a_client_that_leaves_a_stream_ends_it_and_what_there_is_of_it_is_cancelled(pool: Pool) -> None:
    with OpenRequest(pool.url, RESPONSES, {"input": "x" * 2000, "stream": True}) as stream:
        read = b""
        while b"output_text.delta" not in read:
            read += stream.read_some()
    response_id = parsed(read[: read.index(b"\n\n") + 2])[0]["response"]["id"]
    pool.wait_idle()

    def ended() -> dict[str, Any] | None:
        document = pool.client.get(f"{RESPONSES}/{response_id}").json()
        return document if document["status"] != "in_progress" else None

    document = wait_for(ended)
    assert document["status"] == "cancelled"
    assert 0 < len(document["output"][0]["content"][0]["text"]) < 2000
    Response.model_validate(document, strict=True)


# ---- a response made by one API server, and all that another does with it -------------------------------------------


def test_a_response_is_fetched_continued_listed_and_deleted_through_others(workers: list[Worker]) -> None:
    maker, reader, other, last = workers
    made = maker.responses.create(model="sim", input="Hi ", instructions="First. ")
    assert made.output_text == "First. Hi "
    assert reader.responses.retrieve(made.id) == made
    more = other.responses.create(model="sim", input="More", previous_response_id=made.id)
    assert more.output_text == "Hi First. Hi More"  # the instructions are not inherited
    assert more.previous_response_id == made.id
    third = last.responses.create(model="sim", input="!", previous_response_id=more.id)
    assert third.output_text == "Hi First. Hi MoreHi First. Hi More!"
    listed = valid(reader.responses.input_items.list(more.id, order="asc"))
    assert [item.content[0].text for item in listed.data] == ["Hi ", "First. Hi ", "More"]
    reader.responses.delete(made.id)
    for worker in workers:
        with pytest.raises(openai.NotFoundError):
            worker.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as broken:
        maker.responses.create(model="sim", input="x", previous_response_id=third.id)
    assert broken.value.param == "previous_response_id"
    assert made.id in broken.value.message


def test_a_stored_item_stands_for_itself_on_any_api_server(workers: list[Worker]) -> None:
    made = workers[0].responses.create(model="sim", input="Hi ")
    reference: Any = {"type": "item_reference", "id": made.output[0].id}
    again = workers[1].responses.create(model="sim", input=[reference, {"role": "user", "content": "there"}])
    assert again.output_text == "Hi there"


def test_pages_of_input_items_by_the_clients_own_paging(workers: list[Worker]) -> None:
    sent: Any = [{"role": "user", "content": str(number)} for number in range(7)]
    sent += [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]
    sent += [{"type": "function_call_output", "call_id": "c", "output": "7"}]
    made = workers[0].responses.create(model="sim", input=sent)
    found = list(workers[1].responses.input_items.list(made.id, limit=2, order="asc"))
    assert [getattr(item, "type", None) for item in found] == ["message"] * 7 + [
        "function_call",
        "function_call_output",
    ]
    page = workers[2].http.get(f"{RESPONSES}/{made.id}/input_items?limit=2").json()
    ResponseItemList.model_validate(page, strict=True)
    assert [item["type"] for item in page["data"]] == ["function_call_output", "function_call"]


def test_a_conversation_goes_on_at_once_after_a_stream(workers: list[Worker]) -> None:
    """The last event leaves when the response is in the store, and not before."""
    previous, said = None, ""
    for worker, number in zip(itertools.cycle(workers), range(8), strict=False):
        for event in worker.responses.create(
            model="sim", input=str(number), previous_response_id=previous, stream=True
        ):
            if event.type == "response.completed":
                previous = event.response.id
                said = event.response.output_text
    assert said.endswith("7")
    assert len(said) == 2**8 - 1


# ---- in the background ----------------------------------------------------------------------------------------------


def finished(worker: Worker, response_id: str) -> Any:
    def look() -> Any:
        response = worker.responses.retrieve(response_id)
        return response if response.status not in ("queued", "in_progress") else None

    return wait_for(look, 20)


def test_a_response_in_the_background_goes_on_when_its_client_has_left(pool: Pool, workers: list[Worker]) -> None:
    with httpx.Client(base_url=pool.url) as client:
        reply = client.post(RESPONSES, json={"input": "x" * 100, "background": True})
    begun = Response.model_validate(reply.json(), strict=True)
    assert (begun.status, begun.background, begun.output) == ("in_progress", True, [])
    with pytest.raises(openai.BadRequestError) as early:
        workers[0].responses.create(model="sim", input="x", previous_response_id=begun.id)
    assert early.value.param == "previous_response_id"
    done = finished(workers[1], begun.id)
    assert (done.status, done.output_text) == ("completed", "x" * 100)
    assert valid(done).usage.output_tokens == 101
    assert workers[2].responses.create(model="sim", input="y", previous_response_id=begun.id).output_text.endswith("xy")


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


# ---- what cannot be -------------------------------------------------------------------------------------------------


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    return response.json()["error"]


@pytest.mark.parametrize("path", ["resp_none", "resp_none/input_items", "%F0%9F%8E%89"])
def test_an_unknown_response_is_not_found(pool: Pool, path: str) -> None:
    assert error_of(pool.client.get(f"{RESPONSES}/{path}"), 404)["param"] == "response_id"


def test_what_was_not_to_be_stored_is_not(pool: Pool) -> None:
    made = pool.openai.responses.create(model="sim", input="Hi", store=False)
    assert made.to_dict()["store"] is False
    for response in (
        pool.client.get(f"{RESPONSES}/{made.id}"),
        pool.client.delete(f"{RESPONSES}/{made.id}"),
        pool.client.post(f"{RESPONSES}/{made.id}/cancel"),
    ):
        error_of(response, 404)
    with pytest.raises(openai.BadRequestError) as gone:
        pool.openai.responses.create(model="sim", input="Hi", previous_response_id=made.id)
    assert (gone.value.param, gone.value.code) == ("previous_response_id", "previous_response_not_found")


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=true", "stream"),
        ("stream=maybe", "stream"),
        ("starting_after=3", "starting_after"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("stream=true&starting_after=1.5", "starting_after"),
    ],
)
def test_a_stream_that_there_is_not_is_refused(pool: Pool, query: str, param: str) -> None:
    made = pool.openai.responses.create(model="sim", input="Hi")
    assert error_of(pool.client.get(f"{RESPONSES}/{made.id}?{query}"), 400)["param"] == param
    assert pool.client.get(f"{RESPONSES}/{made.id}?stream=false&include=x").json()["id"] == made.id


def test_only_what_is_in_the_background_can_be_cancelled(pool: Pool) -> None:
    made = pool.openai.responses.create(model="sim", input="Hi")
    with pytest.raises(openai.BadRequestError) as refused:
        pool.openai.responses.cancel(made.id)
    assert refused.value.param == "response_id"
    done = pool.openai.responses.create(model="sim", input="Hi", background=True)
    wait_for(lambda: pool.openai.responses.retrieve(done.id).status == "completed")
    assert pool.openai.responses.cancel(done.id).status == "completed"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "x", "background": True, "store": False}, "background"),
        ({"input": "x", "previous_response_id": "resp_none"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input[0].id"),
        ({"input": "x", "max_output_tokens": 5000}, "max_output_tokens"),
        ({"input": "x", "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    ],
    ids=str,
)
def test_what_is_wrong_is_refused_before_a_stream_begins(pool: Pool, body: dict[str, Any], param: str) -> None:
    for fields in ({}, {"stream": True}):
        assert error_of(pool.client.post(RESPONSES, json=body | fields), 400)["param"] == param


def test_a_body_that_is_no_json_is_refused(pool: Pool) -> None:
    headers = {"content-type": "application/json"}
    error_of(pool.client.post(RESPONSES, content=b"{", headers=headers), 400)
    error_of(pool.client.post(RESPONSES, content=b'{"input": "\\ud83d"}', headers=headers), 400)
    error_of(pool.client.post(RESPONSES, content=b"{}"), 400)


def test_another_method_is_told_which_ones_there_are(pool: Pool) -> None:
    for method, path, allowed in (
        ("GET", RESPONSES, "POST"),
        ("POST", f"{RESPONSES}/resp_1", "GET, HEAD, DELETE"),
        ("GET", f"{RESPONSES}/resp_1/cancel", "POST"),
        ("DELETE", f"{RESPONSES}/resp_1/input_items", "GET, HEAD"),
    ):
        response = pool.client.request(method, path)
        error_of(response, 405)
        assert response.headers["allow"] == allowed


# ---- without a store ------------------------------------------------------------------------------------------------


def test_a_pool_that_keeps_nothing_says_so_and_answers_all_the_same(start_pool: StartPool) -> None:
    with start_pool("--no-responses-store", "--api-server-count", "1") as pool:
        made = pool.openai.responses.create(model="sim", input="Hi", max_output_tokens=3)
        assert made.to_dict()["store"] is False
        assert [event.type for event in pool.openai.responses.create(model="sim", input="Hi", stream=True)]
        for response in (
            pool.client.get(f"{RESPONSES}/{made.id}"),
            pool.client.get(f"{RESPONSES}/{made.id}/input_items"),
            pool.client.delete(f"{RESPONSES}/{made.id}"),
            pool.client.post(f"{RESPONSES}/{made.id}/cancel"),
        ):
            assert "--no-responses-store" in error_of(response, 404)["message"]
        for fields, param in (
            ({"store": True}, "store"),
            ({"background": True}, "background"),
            ({"previous_response_id": made.id}, "previous_response_id"),
            ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ):
            error = error_of(pool.client.post(RESPONSES, json={"input": "Hi", **fields}), 400)
            assert error["param"] == param
            assert "--no-responses-store" in error["message"]

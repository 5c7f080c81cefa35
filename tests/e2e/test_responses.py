"""The Responses API by the official client, against four API servers: one response, whichever of them answers."""

import itertools
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseItemList

from tests.e2e.responses_clients import FAILS_AT_ONCE, FAILS_LATER, IS_REFUSED, RESPONSES, Worker, valid
from tests.pool import Pool, wait_for
from tests.responses_grammar import anonymous, check, parsed
from tests.streams import OpenRequest

pytestmark = pytest.mark.e2e


@pytest.fixture
def pool(responses_pool: Pool) -> Pool:
    return responses_pool


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
@pytest.mark.exercises("openai-python", "/v1/responses", "whole and by the stream helper, tools")
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


@pytest.mark.exercises("openai-python", "/v1/responses", "fetched, continued, listed, deleted through any API server")
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


def test_an_item_that_its_client_named_is_nobody_elses(workers: list[Worker]) -> None:
    """Others give their items the same name, and each would be told what the first one's item says."""
    for number, said in enumerate(("mine", "yours")):
        sent: Any = [{"role": "user", "content": said, "id": "item_1"}]
        made = workers[number].responses.create(model="sim", input=sent)
        [listed] = workers[2].responses.input_items.list(made.id).data
        assert listed.id == "item_1"
    reference: Any = {"type": "item_reference", "id": "item_1"}
    with pytest.raises(openai.BadRequestError) as refused:
        workers[3].responses.create(model="sim", input=[reference])
    assert refused.value.param == "input[0].id"


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

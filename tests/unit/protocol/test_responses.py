"""Responses without a server: deltas to items and events, and the stream's fold is the whole answer."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response as ClientResponse
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from apiserver.errors import InvalidRequest, Unavailable
from apiserver.events import (
    Delta,
    Event,
    Finished,
    PreparedPrompt,
    PromptScored,
    ReasoningDelta,
    Result,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from apiserver.http import sse
from apiserver.protocol.responses import Past, Response
from apiserver.protocol.responses_request import read_response
from engine_bridge.wire import FinishReason
from tests.bodies import read
from tests.responses_grammar import anonymous, check, parsed
from tests.unit.protocol.cards import make_card

STARTED = Started([PreparedPrompt.of([1, 2, 3], "Hi!")])
_EVENT = TypeAdapter[Any](ResponseStreamEvent)


def exchange(card: Any = None, *, stores: bool = True, **fields: Any) -> Response:
    card = card or make_card()
    raw = json.dumps({"input": "Hi", **fields}).encode()
    return Response(read_response(raw, card), Past(), card, stores=stores)


def finished(reason: FinishReason = FinishReason.STOP, **counts: int) -> Finished:
    return Finished(0, reason, None, 499, 7, 2, **counts)


def token(text: str, logprob: float = -0.5) -> TokenLogprob:
    return TokenLogprob(65, logprob, text, text.encode(), (TokenLogprob(66, -1.0, "b", b"b"),))


def bytes_of(response: Response, events: Iterable[Event]) -> bytes:
    result = Result()
    frames: list[bytes] = []
    for event in events:
        result.feed(event)
        frames += [sse.encode(chunk) for chunk in response.chunks(event)]
    frames += [sse.encode(chunk) for chunk in response.last_chunks(result)]
    return b"".join(frames)


def whole(response: Response, events: Iterable[Event]) -> dict[str, Any]:
    result = Result()
    for event in events:
        result.feed(event)
    document = read(response.body(result))
    ClientResponse.model_validate(document, strict=True)
    return document


TEXT: list[Delta] = [TextDelta(0, "Grü", [1]), TextDelta(0, "ße 🎉", [2, 3])]
CALL: list[Delta] = [
    ToolCallDelta(0, 0, "", "call_1", "look_up"),
    ToolCallDelta(0, 0, '{"wor'),
    ToolCallDelta(0, 0, 'd": "a"}'),
]
OTHER_CALL: list[Delta] = [ToolCallDelta(0, 1, '{"word": "b"}', "call_2", "look_up")]
THOUGHT: list[Delta] = [ReasoningDelta(0, "Let me"), ReasoningDelta(0, " see.")]
ANSWERS: dict[str, tuple[list[Delta], Finished]] = {
    "stop": (TEXT, finished()),
    "length": (TEXT, finished(FinishReason.LENGTH)),
    "nothing": ([], finished()),
    "nothing, by length": ([], finished(FinishReason.LENGTH)),
    "tool call": (CALL, finished(tool_calls=1)),
    "a tool call cut short": (CALL[:2], finished(FinishReason.LENGTH, tool_calls=1)),
    "two tool calls": ([*CALL, *OTHER_CALL], finished(tool_calls=2)),
    "reasoning": ([*THOUGHT, *TEXT], finished(reasoning_tokens=4)),
    "reasoning alone": (THOUGHT, finished(FinishReason.LENGTH, reasoning_tokens=7)),
    "reasoning, text, tool calls": ([*THOUGHT, *TEXT, *CALL, *OTHER_CALL], finished(tool_calls=2, reasoning_tokens=4)),
    "text after a tool call": ([*TEXT, *CALL, *TEXT], finished(tool_calls=1)),
    "aborted": (TEXT, finished(FinishReason.ABORT)),
    "aborted at once": ([], finished(FinishReason.ABORT)),
    "logprobs": (
        [
            TextDelta(0, "", [1], [token("\ufffd")]),
            TextDelta(0, "é", [2], [token("é")]),
            TextDelta(0, "", [3], [token("x")]),
        ],
        finished(),
    ),
    "logprobs beside other things": (
        [TextDelta(0, "", [], [token("<")]), *THOUGHT, TextDelta(0, "A", [2], [token("A")]), *CALL],
        finished(),
    ),
    "logprobs held before a call": ([TextDelta(0, "", [], [token("<")]), *CALL, TextDelta(0, "A", [])], finished()),
}
FIELDS: list[dict[str, Any]] = [{}, {"reasoning": {"summary": "auto"}}]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
@pytest.mark.parametrize("answer", ANSWERS)
def test_a_stream_keeps_the_grammar_and_its_fold_is_the_whole_answer(answer: str, fields: dict[str, Any]) -> None:
    deltas, end = ANSWERS[answer]
    events: list[Event] = [STARTED, *deltas, end]
    streamed = parsed(bytes_of(exchange(stream=True, **fields), events))
    last = check(streamed)
    told = whole(exchange(**fields), events)
    assert anonymous(last["response"]) == anonymous(told)
    assert anonymous(accumulated(streamed)) == anonymous([simple(item) for item in told["output"]])


def accumulated(streamed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the official client's own accumulator makes of the deltas alone."""
    state = ResponseStreamState[Any](input_tools=omit, text_format=omit)
    for event in streamed:
        if event["type"] != "response.completed":  # whose output would be taken instead
            state.handle_event(_EVENT.validate_python(event))
    return [simple(state._output_items[index].to_dict()) for index in sorted(state._output_items)]


def simple(item: dict[str, Any]) -> dict[str, Any]:
    """What the accumulator keeps up to date: of a reasoning item only that it was there."""
    if item["type"] == "reasoning":
        return {"type": "reasoning", "id": item["id"]}
    if item["type"] == "function_call":
        return {key: item[key] for key in ("type", "id", "call_id", "name", "arguments")}
    return {"type": "message", "id": item["id"], "text": "".join(part["text"] for part in item["content"])}


DELTAS = st.one_of(
    st.builds(TextDelta, st.just(0), st.text(max_size=3)),
    st.builds(ReasoningDelta, st.just(0), st.text(max_size=3)),
    st.builds(ToolCallDelta, st.just(0), st.just(0), st.text(max_size=3), st.just("call_1"), st.just("f")),
    st.builds(ToolCallDelta, st.just(0), st.just(0), st.text(max_size=3)),
)


@given(deltas=st.lists(DELTAS, max_size=12))
def test_any_deltas_whatever_make_the_same_whole_and_streamed(deltas: list[Delta]) -> None:
    events: list[Event] = [STARTED, *deltas, finished()]
    last = check(parsed(bytes_of(exchange(stream=True), events)))
    assert anonymous(last["response"]) == anonymous(whole(exchange(), events))


@pytest.mark.parametrize("deltas", [[], TEXT, THOUGHT, CALL[:2]], ids=["nothing", "text", "thought", "call"])
def test_an_error_in_mid_stream_closes_what_is_open_and_fails_the_response(deltas: list[Delta]) -> None:
    response = exchange(stream=True)
    chunks = [chunk for event in (STARTED, *deltas) for chunk in response.chunks(event)]
    chunks += response.error_chunks(Unavailable("the engine died"))
    last = check(parsed(b"".join(map(sse.encode, chunks))))
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "the engine died"}
    assert last["response"]["status"] == response.status == "failed"


def test_a_request_that_the_engine_finds_wrong_in_mid_stream_is_the_clients_fault() -> None:
    response = exchange(stream=True)
    (last,) = response.error_chunks(InvalidRequest("the grammar is broken"))
    assert last.document["type"] == "response.failed"
    assert json.loads(response.document)["error"]["code"] == "invalid_prompt"


def test_what_cannot_be_stored_in_the_end_says_so_in_the_place_of_its_last_event() -> None:
    response = exchange(stream=True)
    stream = bytes_of(response, [STARTED, *TEXT, finished()])
    kept = stream[: stream.rindex(b"event: ")]
    last = check(parsed(kept + sse.encode(response.not_kept())))
    assert (last["type"], last["code"]) == ("error", "server_error")


def test_one_that_nobody_waits_for_any_more_is_cancelled_as_far_as_it_came() -> None:
    response = exchange(stream=True)
    for event in (STARTED, *TEXT):
        list(response.chunks(event))
    response.cancel()
    document = json.loads(response.document)
    assert (response.status, document["status"]) == ("cancelled", "cancelled")
    assert document["output"][0]["content"][0]["text"] == "Grüße 🎉"
    assert document["output"][0]["status"] == "incomplete"
    ClientResponse.model_validate(document, strict=True)


def test_one_that_has_told_its_end_is_not_cancelled_any_more() -> None:
    response = exchange(stream=True)
    bytes_of(response, [STARTED, *TEXT, finished()])
    told = response.document
    response.cancel()
    assert (response.status, response.document) == ("completed", told)


def test_an_item_that_is_open_is_shown_as_far_as_it_has_come() -> None:
    for deltas, kind in ((TEXT, "message"), (THOUGHT, "reasoning"), (CALL, "function_call")):
        response = exchange(stream=True)
        for event in (STARTED, *deltas):
            list(response.chunks(event))
        assert len(response.item_ids) == 2  # the input's and the open one
        assert response._items.documents[-1]["type"] == kind


def test_usage_has_all_its_details() -> None:
    events: list[Event] = [STARTED, *THOUGHT, *TEXT, finished(reasoning_tokens=4)]
    assert whole(exchange(), events)["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 10,
    }


def test_an_event_of_another_kind_of_job_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        list(exchange().chunks(PromptScored(0, [])))


def test_the_object_says_the_request_again() -> None:
    said = {
        "instructions": "Be brief.",
        "max_output_tokens": 9,
        "max_tool_calls": 2,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "previous_response_id": "resp_1",
        "prompt_cache_key": "k",
        "reasoning": {"effort": "low", "summary": "auto"},
        "safety_identifier": "s",
        "temperature": 0.5,
        "text": {
            "format": {
                "type": "json_schema",
                "name": "n",
                "schema": {"type": "object"},
                "strict": True,
                "description": None,
            },
            "verbosity": "low",
        },
        "tool_choice": "none",
        "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {}, "strict": True}],
        "top_logprobs": 2,
        "top_p": 0.9,
        "truncation": "auto",
        "user": "u",
    }
    document = whole(exchange(**said), [STARTED, *TEXT, finished()])
    assert {name: document[name] for name in said} == said
    assert (document["store"], document["background"], document["service_tier"]) == (True, False, "default")
    assert whole(exchange(stores=False), [STARTED, finished()])["store"] is False


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ({}, {"type": "text"}),
        ({"format": {"type": "text"}}, {"type": "text"}),
        ({"format": {"type": "json_object"}}, {"type": "json_object"}),
        (
            {"format": {"type": "json_schema", "name": "n", "schema": '{"type":"object"}'}},
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": None, "description": None},
        ),
    ],
    ids=["unset", "text", "json_object", "a schema as text"],
)
def test_the_object_shows_the_texts_format(text: Any, shown: Any) -> None:
    assert whole(exchange(text=text), [STARTED, finished()])["text"] == {"format": shown, "verbosity": "medium"}


def test_a_number_for_an_effort_is_none_of_the_objects_words() -> None:
    response = exchange(reasoning={"effort": 0.5, "generate_summary": "concise"})
    assert json.loads(response.document)["reasoning"] == {"effort": None, "summary": "concise"}


def test_what_runs_in_the_background_is_told_step_by_step() -> None:
    response = exchange(background=True)
    assert (response.stream, response.background, response.resumable) == (True, True, False)
    response = exchange(background=True, stream=True)
    assert (response.stream, response.background, response.resumable) == (True, True, True)
    response = exchange()
    assert (response.stream, response.background, response.resumable) == (False, False, False)


def test_errors_are_openais() -> None:
    assert Response.error(InvalidRequest("no", param="input")) == {
        "error": {"message": "no", "type": "invalid_request_error", "param": "input", "code": 400}
    }


def test_a_body_is_ready_bytes() -> None:
    result = Result()
    for event in (STARTED, *TEXT, finished()):
        result.feed(event)
    response = exchange()
    body = response.body(result)
    assert body.document == response.document
    assert msgspec.json.decode(body.document)["status"] == response.status == "completed"

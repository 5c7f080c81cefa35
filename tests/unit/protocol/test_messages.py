"""Anthropic's Messages without a server: events to blocks, whole and streamed, and the one is the fold of the other."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jiter import from_json

from apiserver.card import Card
from apiserver.errors import (
    ApiError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnsupportedEncoding,
)
from apiserver.events import (
    Event,
    Finished,
    PreparedPrompt,
    ReasoningDelta,
    Rendered,
    Result,
    Started,
    TextDelta,
    ToolCallDelta,
)
from apiserver.http import sse
from apiserver.protocol.messages import Messages
from engine_bridge.wire import FinishReason, SamplingParams
from tests import anthropic_grammar
from tests.unit.protocol.cards import make_card

HI = [{"role": "user", "content": "Hi"}]


def exchange(card: Card | None = None, **fields: Any) -> Messages:
    return Messages(json.dumps({"messages": HI, "max_tokens": 100, **fields}).encode(), card or make_card())


def streamed(events: Iterable[Event], *, error: ApiError | None = None, **fields: Any) -> list[dict[str, Any]]:
    """The documents of a whole stream, as the endpoint sends it; the grammar is checked."""
    message = exchange(stream=True, **fields)
    assert message.stream
    result = Result()
    frames: list[bytes] = []
    for event in events:
        result.feed(event)
        frames += [sse.encode(chunk) for chunk in message.chunks(event)]
    last = message.last_chunks(result) if error is None else message.error_chunks(error)
    frames += [sse.encode(chunk) for chunk in last]
    documents = anthropic_grammar.frames(b"".join(frames))
    anthropic_grammar.check(documents)
    return documents


def whole(events: Iterable[Event], **fields: Any) -> dict[str, Any]:
    result = Result()
    for event in events:
        result.feed(event)
    return json.loads(msgspec.json.encode(exchange(**fields).body(result).document))


def started(tokens: int = 3) -> Started:
    return Started([PreparedPrompt.of(list(range(tokens)), "Hi!")])


def finished(reason: FinishReason = FinishReason.STOP, **fields: Any) -> Finished:
    values = {"index": 0, "stop_reason": None, "matched_stop": 499, "output_tokens": 5, "cached_tokens": 0}
    return Finished(**{**values, "reason": reason, **fields})


def answer(*events: Event, **fields: Any) -> list[Event]:
    return [started(), *events, finished(**fields)]


def both(events: Sequence[Event], **fields: Any) -> dict[str, Any]:
    """The whole answer, which must be the fold of the stream: but for the id, which is another message's."""
    body = anthropic_grammar.read(whole(events, **fields))
    folded = anthropic_grammar.folded(streamed(events, **fields))
    assert folded | {"id": body["id"]} == body
    return body


THOUGHT = [ReasoningDelta(0, "Let me "), ReasoningDelta(0, "see.")]
SAID = [TextDelta(0, "Grü"), TextDelta(0, "ße ")]
FIRST_CALL = [
    ToolCallDelta(0, 0, "", "call_1", "look_up"),
    ToolCallDelta(0, 0, '{"wo'),
    ToolCallDelta(0, 0, 'rd": "x"}'),
]
SECOND_CALL = [ToolCallDelta(0, 1, '{"a": [1, 2.0]}', "call_2", "add")]
EMPTY_CALL = [ToolCallDelta(0, 2, "", "call_3", "now")]


def test_text_is_one_block_and_the_turn_ends() -> None:
    body = both(answer(*SAID))
    assert body["content"] == [{"type": "text", "text": "Grüße "}]
    assert (body["stop_reason"], body["role"], body["type"], body["model"]) == (
        "end_turn",
        "assistant",
        "message",
        "first",
    )
    assert body["id"].startswith("msg_")


def test_an_empty_answer_has_no_block() -> None:
    assert both(answer(TextDelta(0, "")))["content"] == []
    assert both(answer())["stop_reason"] == "end_turn"


def test_thinking_text_and_calls_are_blocks_in_their_order() -> None:
    events = answer(*THOUGHT, *SAID, *FIRST_CALL, *SECOND_CALL, *EMPTY_CALL, TextDelta(0, "end"), tool_calls=3)
    body = both(events)
    assert body["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "unsigned"},
        {"type": "text", "text": "Grüße "},
        {"type": "tool_use", "id": "call_1", "name": "look_up", "input": {"word": "x"}},
        {"type": "tool_use", "id": "call_2", "name": "add", "input": {"a": [1, 2.0]}},
        {"type": "tool_use", "id": "call_3", "name": "now", "input": {}},
        {"type": "text", "text": "end"},
    ]
    assert body["stop_reason"] == "tool_use"


def test_arguments_arrive_in_pieces_that_join_to_their_json() -> None:
    documents = streamed(answer(*FIRST_CALL, tool_calls=1))
    pieces = [one["delta"]["partial_json"] for one in documents if one["type"] == "content_block_delta"]
    assert pieces == ['{"wo', 'rd": "x"}']


def test_thinking_that_is_not_to_be_shown_is_a_signed_block_without_text() -> None:
    for kind in ("adaptive", "enabled"):
        body = both(answer(*THOUGHT, *SAID), thinking={"type": kind, "display": "omitted"})
        assert body["content"][0] == {"type": "thinking", "thinking": "", "signature": "unsigned"}
        assert body["content"][1]["text"] == "Grüße "


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"stop_reason": 7}, "end_turn", None),  # a stop token that is no text of the client's
        ({"stop_reason": "END"}, "stop_sequence", "END"),
        ({"tool_calls": 1}, "tool_use", None),
        ({"tool_calls": 1, "stop_reason": "END"}, "tool_use", None),
        ({"reason": FinishReason.LENGTH, "output_tokens": 100}, "max_tokens", None),
        ({"reason": FinishReason.LENGTH, "output_tokens": 100, "tool_calls": 1}, "max_tokens", None),
        ({"reason": FinishReason.LENGTH, "output_tokens": 99}, "model_context_window_exceeded", None),
        ({"reason": FinishReason.ABORT}, "pause_turn", None),
    ],
)
def test_the_stop_reason_is_the_same_in_both_modes(fields: dict[str, Any], reason: str, sequence: str | None) -> None:
    events = answer(TextDelta(0, "a"), **fields)
    body = both(events)
    assert (body["stop_reason"], body.get("stop_sequence")) == (reason, sequence)
    assert "stop_sequence" in whole(events)  # null, but there


def test_usage_is_real_at_both_ends() -> None:
    events = [started(7), *SAID, finished(output_tokens=4, cached_tokens=5, reasoning_tokens=2)]
    documents = streamed(events)
    start, end = documents[0]["message"]["usage"], documents[-2]["usage"]
    assert (start["input_tokens"], start["cache_read_input_tokens"], start["output_tokens"]) == (7, 0, 0)
    assert (end["input_tokens"], end["cache_read_input_tokens"], end["output_tokens"]) == (2, 5, 4)
    assert end["output_tokens_details"] == {"thinking_tokens": 2}
    assert both(events)["usage"]["cache_read_input_tokens"] == 5


def test_the_stream_starts_before_the_first_token() -> None:
    assert [document["type"] for document in streamed(answer())] == [
        "message_start",
        "ping",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize("events", [[], SAID, THOUGHT, FIRST_CALL[:2]], ids=["nothing", "text", "thinking", "call"])
def test_an_error_closes_what_is_open_and_is_the_last_word(events: list[Event]) -> None:
    error = Unavailable("the engine is gone")
    error.request_id = "req-1"
    documents = streamed([started(), *events], error=error)
    assert documents[-1] == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "the engine is gone"},
        "request_id": "req-1",
    }


def test_a_stream_that_its_client_left_broke_no_rule_until_then() -> None:
    documents = streamed(answer(*THOUGHT, *SAID, *FIRST_CALL, tool_calls=1))
    for end in range(len(documents)):
        anthropic_grammar.check(documents[:end], whole=False)


@pytest.mark.parametrize("text", ['"', "\\", "\n", "\x00", "😀", "\u2028", "</script>", '{"a":1}'])
def test_every_text_survives_the_splicing_of_deltas(text: str) -> None:
    body = both(answer(ReasoningDelta(0, text), TextDelta(0, text)))
    assert [block.get("text", block.get("thinking")) for block in body["content"]] == [text, text]


PIECES = st.text(max_size=3)
DELTAS = st.lists(
    st.builds(TextDelta, st.just(0), PIECES)
    | st.builds(ReasoningDelta, st.just(0), PIECES)
    | st.builds(
        ToolCallDelta,
        st.just(0),
        st.just(0),
        st.sampled_from(["", "{}", '{"a": 1}']),
        st.sampled_from(["call_1", "call_2"]),
        st.just("name"),
    ),
    max_size=8,
)


@given(deltas=DELTAS, shown=st.booleans())
@settings(max_examples=200, deadline=None)
def test_whatever_the_model_makes_the_stream_folds_to_the_whole_answer(deltas: list[Event], shown: bool) -> None:
    both(answer(*deltas), thinking={"type": "adaptive", "display": "summarized" if shown else "omitted"})


WHOLE_JSON = [
    '{"a": 12, "b": [1, {"c": "x\\"y"}, null], "d": -1.5e3, "e": true}',
    '{"Grüße": "世界 \\ud83c\\udf89", "empty": {}, "list": []}',
    '{ "a" : { "b" : "c" } , "d" : "e,}]" }',
]


@pytest.mark.parametrize("text", WHOLE_JSON)
def test_a_call_that_was_cut_off_is_the_same_in_both_modes(text: str) -> None:
    for end in range(1, len(text) + 1):
        call = [ToolCallDelta(0, 0, text[:end], "call_1", "f")]
        body = both(answer(*call, reason=FinishReason.LENGTH, output_tokens=100, tool_calls=1))
        assert body["stop_reason"] == "max_tokens"
        assert body["content"][0]["input"] == from_json(text[:end].encode(), partial_mode=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", {}),
        ("x", {}),
        ("nul", {}),
        ('"abc', {}),
        ("}", {}),
        (",", {}),
        ('{"a": 1]', {"a": 1}),
        ('{"a": 01}', {}),
        ('{"a": x}', {}),
        ('{"a" "b"}', {}),
        ('{"a" 1}', {}),
        ('{"a": 1 2}', {}),
        ('{"a":1}x', {"a": 1}),
        ('{"a":' * 200, None),
        ('{"a":' * 20_000, None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_json_is_still_an_input(text: str, value: dict[str, Any] | None) -> None:
    body = whole(answer(ToolCallDelta(0, 0, text, "call_1", "f"), tool_calls=1))
    assert isinstance(body["content"][0]["input"], dict)
    assert value is None or body["content"][0]["input"] == value


def test_an_event_of_another_job_is_a_bug_of_ours() -> None:
    with pytest.raises(AssertionError, match="no message event"):
        list(exchange().chunks(Rendered(0, SamplingParams())))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidRequest("no"), "invalid_request_error"),
        (Unauthorized("no"), "authentication_error"),
        (NotFound("no"), "not_found_error"),
        (MethodNotAllowed("no", allowed=("POST",)), "invalid_request_error"),
        (TooLarge("no"), "request_too_large"),
        (UnsupportedEncoding("no"), "invalid_request_error"),
        (ApiError("no"), "api_error"),
        (Unavailable("no"), "overloaded_error"),
    ],
)
def test_errors_have_the_types_that_clients_look_for(error: ApiError, kind: str) -> None:
    document = Messages.error(error)
    assert document == {"type": "error", "error": {"type": kind, "message": "no"}, "request_id": None}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, "permission_error"),
        (408, "timeout_error"),
        (429, "rate_limit_error"),
        (431, "invalid_request_error"),
        (501, "api_error"),
        (504, "timeout_error"),
    ],
)
def test_every_status_has_its_type(status: int, kind: str) -> None:
    class Failure(ApiError):
        pass

    Failure.status = status
    assert Messages.error(Failure("no"))["error"]["type"] == kind

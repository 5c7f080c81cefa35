"""Chat's answers with tool calls and reasoning: events to chunks, and the stream's fold is the whole answer."""

import json
from typing import Any

import pytest

from apiserver.events import (
    Event,
    Finished,
    PreparedPrompt,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)
from apiserver.protocol.chat_completions import ChatCompletion
from engine_bridge.wire import FinishReason
from tests.unit.protocol.cards import make_card
from tests.unit.protocol.test_chat_completions import HI, streamed, whole

TOOL = {"type": "function", "function": {"name": "f"}}
CARD = make_card(tool_call_parser="hermes", reasoning_parser="qwen3")


def exchange(**fields: Any) -> ChatCompletion:
    return ChatCompletion(json.dumps({"messages": HI, "tools": [TOOL], **fields}).encode(), CARD)


def answer(*more: Event, reason: FinishReason = FinishReason.STOP, calls: int = 0) -> list[Event]:
    started = Started([PreparedPrompt.of([1, 2, 3], "Hi!")])
    return [started, *more, Finished(0, reason, None, None, 9, 0, tool_calls=calls, reasoning_tokens=2)]


THOUGHTS = (ReasoningDelta(0, "H", [1]), ReasoningDelta(0, "m", [2]))
CALLS = (
    ToolCallDelta(0, 0, "", "call_1", "f", [3]),
    ToolCallDelta(0, 0, '{"a": ', token_ids=[4]),
    ToolCallDelta(0, 0, "1}", token_ids=[5]),
    ToolCallDelta(0, 1, "{}", "call_2", "f", [6]),
)
TEXT = TextDelta(0, "Yes", [7])


def deltas(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]][1:-1]


def test_a_whole_answer_has_reasoning_calls_and_no_content() -> None:
    document = whole(exchange(), answer(*THOUGHTS, *CALLS, calls=2))
    [choice] = document["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == (None, "Hm", "Hm")
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'},
        {"name": "f", "arguments": "{}"},
    ]
    assert [(call["id"], call["type"]) for call in message["tool_calls"]] == [
        ("call_1", "function"),
        ("call_2", "function"),
    ]
    assert document["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_an_answer_without_calls_has_content_and_null_for_reasoning() -> None:
    message = whole(exchange(), answer(TEXT))["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": "Yes",
        "refusal": None,
        "reasoning_content": None,
        "reasoning": None,
    }


def test_a_stream_tells_each_kind_in_its_own_deltas() -> None:
    chunks = streamed(exchange(stream=True), answer(*THOUGHTS, TEXT, *CALLS, calls=2))
    assert deltas(chunks) == [
        {"reasoning_content": "H", "reasoning": "H"},
        {"reasoning_content": "m", "reasoning": "m"},
        {"content": "Yes"},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {
            "tool_calls": [
                {"index": 1, "id": "call_2", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ]
        },
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["choices"][0]["delta"] == {}


@pytest.mark.parametrize(
    ("reason", "calls", "word"),
    [
        (FinishReason.STOP, 1, "tool_calls"),
        (FinishReason.STOP, 0, "stop"),
        (FinishReason.LENGTH, 1, "length"),
        (FinishReason.ABORT, 1, "abort"),
    ],
)
def test_tool_calls_is_the_reason_only_of_an_answer_that_ended_with_some(
    reason: FinishReason, calls: int, word: str
) -> None:
    events = answer(*CALLS[: 4 * calls], reason=reason, calls=calls)
    assert whole(exchange(), events)["choices"][0]["finish_reason"] == word
    assert streamed(exchange(stream=True), events)[-1]["choices"][0]["finish_reason"] == word


@pytest.mark.parametrize(
    ("choice", "word"), [("required", "tool_calls"), ({"type": "function", "function": {"name": "f"}}, "stop")]
)
def test_a_call_by_name_ends_with_stop(choice: Any, word: str) -> None:  # vllm-project/vllm#25054
    events = answer(*CALLS[:3], calls=1)
    assert whole(exchange(tool_choice=choice), events)["choices"][0]["finish_reason"] == word
    assert streamed(exchange(tool_choice=choice), events)[-1]["choices"][0]["finish_reason"] == word


def test_reasoning_may_come_in_one_piece() -> None:
    chunks = streamed(exchange(stream=True, stream_reasoning=False), answer(*THOUGHTS, TEXT))
    assert deltas(chunks) == [{"reasoning_content": "Hm", "reasoning": "Hm"}, {"content": "Yes"}]
    chunks = streamed(exchange(stream=True, stream_reasoning=False, return_token_ids=True), answer(*THOUGHTS))
    assert [chunk["choices"][0].get("token_ids") for chunk in chunks] == [None, [1, 2], None]


def test_reasoning_may_be_left_out() -> None:
    fields: dict[str, Any] = {"include_reasoning": False}
    assert deltas(streamed(exchange(stream=True, **fields), answer(*THOUGHTS, TEXT))) == [{"content": "Yes"}]
    assert "reasoning" not in whole(exchange(**fields), answer(*THOUGHTS, TEXT))["choices"][0]["message"]
    chunks = streamed(exchange(stream=True, return_token_ids=True, **fields), answer(*THOUGHTS, TEXT))
    assert deltas(chunks) == [{}, {}, {"content": "Yes"}]


def test_every_delta_has_its_logprobs_and_ids() -> None:
    scored = [TokenLogprob(3, -0.5, "x", b"x")]
    events = answer(ReasoningDelta(0, "H", [3], scored), ToolCallDelta(0, 0, "{}", "call_1", "f", [3], scored), calls=1)
    chunks = streamed(exchange(stream=True, logprobs=True, return_token_ids=True), events)
    for chunk in chunks[1:-1]:
        assert chunk["choices"][0]["logprobs"]["content"][0]["token"] == "x"
        assert chunk["choices"][0]["token_ids"] == [3]


def test_continuous_usage_counts_every_kind() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = streamed(exchange(stream=True, stream_options=options), answer(*THOUGHTS, TEXT, *CALLS, calls=2))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}

"""Chat completions without a server: bytes to a job, events to chunks, and the stream's fold is the whole answer."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from apiserver.errors import InvalidRequest, NotFound, Unavailable
from apiserver.events import Event, Finished, PreparedPrompt, Result, Started, TextDelta, TokenLogprob
from apiserver.http import sse
from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.requests import GenerateJob, TokenIds
from engine_bridge.wire import FinishReason
from tests.bodies import read
from tests.unit.protocol.cards import make_card

HI = [{"role": "user", "content": "Hi"}]


def exchange(card: Any = None, **fields: Any) -> ChatCompletion:
    return ChatCompletion(json.dumps({"messages": HI, **fields}).encode(), card or make_card())


def job(**fields: Any) -> GenerateJob:
    return exchange(**fields).job


def streamed(chat: ChatCompletion, events: Iterable[Event]) -> list[dict[str, Any]]:
    """The chunks of a whole stream, as a client decodes them; [DONE] is checked and left out."""
    result = Result()
    frames: list[bytes] = []
    for event in events:
        result.feed(event)
        frames += [sse.encode(chunk) for chunk in chat.chunks(event)]
    frames += [sse.encode(chunk) for chunk in chat.last_chunks(result)]
    assert frames[-1] == b"data: [DONE]\n\n"
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-1]]


def whole(chat: ChatCompletion, events: Iterable[Event]) -> dict[str, Any]:
    result = Result()
    for event in events:
        result.feed(event)
    return read(chat.body(result))


def answer(*texts: str, prompt: int = 3, reason: FinishReason = FinishReason.STOP) -> list[Event]:
    """One choice a text, told letter by letter, the choices in turn."""
    events: list[Event] = [Started([PreparedPrompt.of(list(range(prompt)), "Hi!")])]
    for place in range(max(map(len, texts))):
        events += [TextDelta(index, text[place], [place]) for index, text in enumerate(texts) if place < len(text)]
    events += [Finished(index, reason, None, 499, len(text), 0) for index, text in enumerate(texts)]
    return events


def test_every_field_that_is_honoured_is_in_the_job() -> None:
    made = job(
        n=2,
        max_completion_tokens=9,
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        min_p=0.1,
        seed=-3,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        min_tokens=2,
        ignore_eos=True,
        stop="END",
        stop_token_ids=[7],
        logit_bias={"5": -100, "6": 1.5},
        logprobs=True,
        top_logprobs=3,
        prompt_logprobs=1,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        return_token_ids=True,
        truncate_prompt_tokens=50,
        request_id="mine",
        priority=4,
        cache_salt="salt",
    )
    params = made.sampling_params
    assert (made.n, made.max_tokens, made.max_tokens_param) == (2, 9, "max_completion_tokens")
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.seed) == (0.5, 0.9, 7, 0.1, -3)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, -1, 1.1)
    assert (params.min_tokens, params.ignore_eos, params.stop_token_ids) == (2, True, (7,))
    assert params.logit_bias == ((5, -100.0), (6, 1.5))
    assert (params.logprobs, params.prompt_logprobs) == (3, 1)
    assert (made.stop, made.include_stop, made.skip_special_tokens, made.with_token_ids) == (
        ("END",),
        True,
        False,
        True,
    )
    assert made.truncation is not None
    assert (made.truncation.keep, made.truncation.side) == (50, "left")
    assert (made.client_request_id, made.priority, made.cache_salt) == ("mine", 4, "salt")


def test_unset_the_answer_may_take_the_rest_of_the_context() -> None:
    assert (job().max_tokens, job().max_tokens_param, job().n, job().sampling_params.logprobs) == (
        None,
        "max_tokens",
        1,
        None,
    )


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": None}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 5}, 5),
        ({"top_logprobs": 0}, None),
    ],
)
def test_logprobs_without_a_number_are_the_sampled_tokens_own(fields: dict[str, Any], count: int | None) -> None:
    assert job(**fields).sampling_params.logprobs == count


def test_ids_may_stand_for_the_messages() -> None:
    made = ChatCompletion(b'{"input_ids": [1, 2.0]}', make_card()).job
    assert made.prompts == [TokenIds([1, 2], "input_ids")]


def test_the_stream_opens_with_the_role_and_ends_with_the_reason() -> None:
    chunks = streamed(exchange(stream=True), answer("ab"))
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["id"].startswith("chatcmpl-")
    assert not any("usage" in chunk for chunk in chunks)


def test_the_whole_answer_is_the_fold_of_the_stream() -> None:
    events = answer("Grüße", "世界!", reason=FinishReason.LENGTH)
    body = whole(exchange(n=2), events)
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for chunk in streamed(exchange(n=2, stream=True), events):
        for choice in chunk["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
            reasons[choice["index"]] = choice["finish_reason"] or reasons.get(choice["index"], "")
    assert [choice["message"]["content"] for choice in body["choices"]] == [texts[0], texts[1]] == ["Grüße", "世界!"]
    assert [choice["finish_reason"] for choice in body["choices"]] == [reasons[0], reasons[1]] == ["length", "length"]
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize(
    "options", [None, {}, {"include_usage": False}, {"include_usage": None}, {"include_obfuscation": True}]
)
def test_usage_is_not_streamed_unasked(options: dict[str, Any] | None) -> None:
    assert not any("usage" in chunk for chunk in streamed(exchange(stream=True, stream_options=options), answer("a")))


def test_usage_that_was_asked_for_is_one_chunk_without_choices() -> None:
    *before, last = streamed(exchange(stream=True, stream_options={"include_usage": True}), answer("ab"))
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 5)
    assert all(chunk["usage"] is None for chunk in before)


@pytest.mark.parametrize("text", ['"', "\\", "\n", "\x00", "😀", "\u2028", "</script>", '{"a":1}'])
def test_every_text_survives_the_splicing_of_chunks(text: str) -> None:
    events: list[Event] = [Started([PreparedPrompt.of([1], "a")]), TextDelta(0, text, [1])]
    [_, chunk] = streamed(exchange(stream=True), events)
    assert chunk["choices"][0]["delta"]["content"] == text


def test_a_model_name_with_quotes_survives_the_splicing_of_chunks() -> None:
    card = make_card(any_model=True)
    chunks = streamed(exchange(card, stream=True, model='a"\\\u2028'), answer("a"))
    assert {chunk["model"] for chunk in chunks} == {'a"\\\u2028'}


def test_logprobs_have_the_shape_of_a_chat() -> None:
    best = TokenLogprob(7, -0.5, "a", b"a")
    scored = TokenLogprob(7, -0.5, "a", b"a", (best,))
    events: list[Event] = [Started([PreparedPrompt.of([1], "a")]), TextDelta(0, "a", [7], [scored])]
    events.append(Finished(0, FinishReason.STOP, None, None, 1, 0))
    document = whole(exchange(logprobs=True, top_logprobs=1), events)["choices"][0]["logprobs"]
    token = {"token": "a", "logprob": -0.5, "bytes": [97]}
    assert document == {"content": [{**token, "top_logprobs": [token]}], "refusal": None}
    as_ids = whole(exchange(logprobs=True, return_tokens_as_token_ids=True), events)["choices"][0]["logprobs"]
    assert as_ids["content"][0]["token"] == "token_id:7"


def test_an_error_in_a_stream_is_a_frame_of_its_own_before_done() -> None:
    frames = [sse.encode(chunk) for chunk in exchange(stream=True).error_chunks(Unavailable("gone"))]
    assert json.loads(frames[0].removeprefix(b"data: "))["error"]["code"] == 503
    assert frames[1:] == [b"data: [DONE]\n\n"]


def test_the_answers_model_is_the_one_that_was_asked_for() -> None:
    assert whole(exchange(), answer("a"))["model"] == "first"
    assert whole(exchange(model="second"), answer("a"))["model"] == "second"
    with pytest.raises(NotFound, match="'first', 'second'"):
        exchange(model="third")


def test_strict_fields_take_every_documented_one() -> None:
    strict = make_card(strict_fields=True)
    exchange(strict, user="u", metadata={}, store=True, prediction={}, verbosity="low", parallel_tool_calls=True)
    with pytest.raises(InvalidRequest, match="Unknown field: zzz"):
        exchange(strict, zzz=1)
    exchange(zzz=1)

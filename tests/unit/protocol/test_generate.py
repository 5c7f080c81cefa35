"""SGLang's native generate: what its fields mean, and how its answers are written, whole and streamed."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from apiserver.errors import InvalidRequest, NotFound
from apiserver.events import Event, Finished, PreparedPrompt, PromptScored, Result, Started, TextDelta, TokenLogprob
from apiserver.http import sse
from apiserver.protocol.generate import Generate
from apiserver.requests import GenerateJob, Text, TokenIds
from engine_bridge.wire import FinishReason
from tests.bodies import read
from tests.unit.protocol.cards import make_card

CARD = make_card()
END = Finished(0, FinishReason.STOP, None, 499, 2, 3)


def exchange(card: Any = CARD, **fields: Any) -> Generate:
    return Generate(json.dumps(fields).encode(), card)


def job(**fields: Any) -> GenerateJob:
    return exchange(**fields).job


def refusal(card: Any = CARD, **fields: Any) -> tuple[str | None, str]:
    with pytest.raises(InvalidRequest) as raised:
        exchange(card, **fields)
    return raised.value.param, raised.value.message


def documents(native: Generate, events: Iterable[Event]) -> list[dict[str, Any]]:
    frames = [sse.encode(chunk) for event in events for chunk in native.chunks(event)]
    return [json.loads(frame.removeprefix(b"data: ")) for frame in frames]


def answer(native: Generate, events: Iterable[Event]) -> Any:
    result = Result()
    for event in events:
        result.feed(event)
    return read(native.body(result))


def token(token_id: int, text: str, *top: TokenLogprob) -> TokenLogprob:
    return TokenLogprob(token_id, -0.5, text, text.encode(), top)


# ---- what is asked ----


def test_a_text_with_nothing_else_makes_128_tokens_of_it() -> None:
    made = job(text="Hello")
    assert made.prompts == [Text("Hello", "text")]
    assert (made.max_tokens, made.n, made.stop, made.with_token_ids) == (128, 1, (), True)
    assert made.sampling_params.temperature == 1.0
    assert made.sampling_params.logprobs is None


def test_every_sampling_parameter_means_something() -> None:
    made = job(
        text="Hello",
        sampling_params={
            "max_new_tokens": 7,
            "min_new_tokens": 2,
            "n": 3,
            "stop": ["x"],
            "stop_token_ids": [5],
            "no_stop_trim": True,
            "ignore_eos": True,
            "skip_special_tokens": False,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 4,
            "min_p": 0.1,
            "sampling_seed": 9,
            "frequency_penalty": 0.2,
            "presence_penalty": 0.3,
            "repetition_penalty": 1.1,
            "logit_bias": {"7": 2},
            "regex": "a+",
        },
    )
    params = made.sampling_params
    assert (made.max_tokens, made.n, made.stop) == (7, 3, ("x",))
    assert (made.include_stop, made.skip_special_tokens) == (True, False)
    assert (params.min_tokens, params.stop_token_ids, params.ignore_eos, params.seed) == (2, (5,), True, 9)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.5, 0.9, 4, 0.1)
    assert (params.frequency_penalty, params.presence_penalty, params.repetition_penalty) == (0.2, 0.3, 1.1)
    assert (params.logit_bias, params.regex) == (((7, 2.0),), "a+")


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("json_schema", '{"type": "object"}', "json_schema"),
        ("json_schema", {"type": "object"}, "json_schema"),
        ("ebnf", "root ::= x", "grammar"),
        ("structural_tag", '{"type": "tag"}', "structural_tag"),
    ],
)
def test_an_answer_can_be_constrained_in_four_ways(field: str, value: Any, kept: str) -> None:
    assert getattr(job(text="a", sampling_params={field: value}).sampling_params, kept) is not None


def test_each_prompt_may_ask_for_something_of_its_own() -> None:
    made = job(
        text=["a", "b"],
        rid=["one", "two"],
        sampling_params=[{"max_new_tokens": 1, "stop": "x"}, {"max_new_tokens": 2}],
        return_logprob=[True, False],
        top_logprobs_num=[2, 0],
        logprob_start_len=[0, -1],
        lora_path=["l", None],
        cache_salt=["s", "t"],
    )
    first, second = made.each
    assert made.prompts == [Text("a", "text[0]"), Text("b", "text[1]")]
    assert [one.prompts for one in made.each] == [[made.prompts[0]], [made.prompts[1]]]
    assert (made.of(0), made.of(1)) == (first, second)
    assert (first.client_request_id, first.max_tokens, first.stop, first.cache_salt) == ("one", 1, ("x",), "s")
    assert (second.client_request_id, second.max_tokens, second.stop, second.cache_salt) == ("two", 2, (), "t")
    assert (first.sampling_params.logprobs, first.sampling_params.prompt_logprobs) == (2, 2)
    assert (second.sampling_params.logprobs, second.sampling_params.prompt_logprobs) == (None, None)
    assert (first.sampling_params.lora, second.sampling_params.lora) == ("l", None)


def test_a_batch_that_asks_for_one_thing_is_one_job() -> None:
    made = job(input_ids=[[1], [2]], rid="r", extra_key="k", priority=4)
    assert made.prompts == [TokenIds([1], "input_ids[0]"), TokenIds([2], "input_ids[1]")]
    assert (made.each, made.client_request_id, made.cache_salt, made.priority) == ((), "r", "k", 4)
    assert made.of(1) is made


def test_tokens_by_id_are_asked_for_with_the_logprobs_and_not_without() -> None:
    asked = {"return_logprob": True, "logprob_start_len": 0}
    assert job(text="a", token_ids_logprob=[5, 6], **asked).sampling_params.token_ids_logprob == (5, 6)
    assert job(text="a", token_ids_logprob=[5, 6]).sampling_params.token_ids_logprob == ()
    assert job(text="a", token_ids_logprob=[], **asked).sampling_params.token_ids_logprob == ()
    same = job(text=["a", "b"], token_ids_logprob=[5, 6], **asked)
    assert (same.each, same.sampling_params.token_ids_logprob) == ((), (5, 6))
    made = job(text=["a", "b", "c"], token_ids_logprob=[[5], [6, 7], []], **asked)
    assert [one.sampling_params.token_ids_logprob for one in made.each] == [(5,), (6, 7), ()]


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({}, "text", "Exactly one"),
        ({"text": "a", "input_ids": [1]}, "text", "Exactly one"),
        ({"text": []}, "text", "empty"),
        ({"input_ids": []}, "input_ids", "empty"),
        ({"input_ids": [[]]}, "input_ids[0]", "empty"),
        ({"input_ids": [True]}, "input_ids", "integers"),
        ({"text": ["a"], "rid": ["x", "y"]}, "rid", "2 items for 1 prompts"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid", "twice"),
        ({"text": "a", "rid": "x" * 257}, "rid", "257 characters"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params", "1 items for 2 prompts"),
        ({"text": ["a", "b"], "sampling_params": [{"n": 2}, {}]}, "sampling_params", "n must be the same"),
        ({"text": "a", "sampling_params": {"n": 0}}, "sampling_params.n", "at least 1"),
        ({"text": "a", "sampling_params": {"temperature": -1}}, "sampling_params.temperature", "at least 0"),
        ({"text": "a", "sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens", "at least 0"),
        (
            {"text": "a", "sampling_params": {"max_new_tokens": 3, "min_new_tokens": 4}},
            "sampling_params.min_new_tokens",
            "at most 3",
        ),
        (
            {"text": "a", "sampling_params": {"sampling_seed": 2**70}},
            "sampling_params.sampling_seed",
            "sampling_seed must",
        ),
        ({"text": ["a", "b"], "sampling_params": [{}, {"top_p": 2}]}, "sampling_params[1].top_p", "at most 1"),
        ({"text": "a", "sampling_params": {"stop": ""}}, "sampling_params.stop", "empty string"),
        ({"text": "a", "sampling_params": {"stop_regex": "a"}}, "sampling_params.stop_regex", "not supported"),
        ({"text": "a", "sampling_params": {"beam_width": 2}}, "sampling_params.beam_width", "not supported"),
        ({"text": "a", "sampling_params": {"json_schema": "["}}, "sampling_params.json_schema", "not valid JSON"),
        (
            {"text": "a", "sampling_params": {"regex": "a", "structural_tag": "{}"}},
            "sampling_params.structural_tag",
            "Only one",
        ),
        ({"text": "a", "token_ids_logprob": ["x"]}, "token_ids_logprob", "integers"),
        ({"text": ["a", "b"], "token_ids_logprob": [[1]]}, "token_ids_logprob", "1 items for 2 prompts"),
        ({"text": "a", "token_ids_logprob": [[1, 2.5]]}, "token_ids_logprob[0]", "integers"),
        ({"text": "a", "token_ids_logprob": [1] * 1025}, "token_ids_logprob", "at most 1024"),
        ({"text": "a", "return_hidden_states": True}, "return_hidden_states", "not supported"),
        ({"text": "a", "image_data": "x.png"}, "image_data", "not supported"),
        ({"text": "a", "return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num", "at most 20"),
        ({"text": "a", "return_logprob": True, "logprob_start_len": -2}, "logprob_start_len", "at least -1"),
        ({"text": "a", "cache_salt": "x" * 1025}, "cache_salt", "1025 characters"),
        ({"text": "a", "sampling_params": 5}, "sampling_params", "Expected"),
        ({"text": "a", "priority": 2**70}, "priority", "at most"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str, says: str) -> None:
    named, message = refusal(**fields)
    assert named == param, message
    assert says in message


def test_what_the_engine_cannot_do_is_refused() -> None:
    unable = make_card(able={"logprobs": -1, "prompt_logprobs": False, "structural_tag": False, "lora": False})
    assert refusal(unable, text="a", return_logprob=True)[0] == "return_logprob"
    able = make_card(able={"prompt_logprobs": False})
    assert refusal(able, text="a", return_logprob=True, logprob_start_len=0)[0] == "logprob_start_len"
    blind = make_card(able={"token_ids_logprob": False})
    assert refusal(blind, text="a", return_logprob=True, token_ids_logprob=[1])[0] == "token_ids_logprob"
    assert refusal(unable, text="a", sampling_params={"structural_tag": "{}"})[0] == "sampling_params.structural_tag"
    assert refusal(unable, text="a", lora_path="x")[0] == "lora_path"


def test_another_model_is_not_found_and_strict_servers_refuse_unknown_fields() -> None:
    with pytest.raises(NotFound):
        exchange(text="a", model="other")
    assert refusal(make_card(strict_fields=True), text="a", nonsense=1)[0] == "nonsense"
    exchange(make_card(strict_fields=True), text="a", stream_options={"include_usage": True}, model="first")


# ---- whole answers ----

PROMPTS = [PreparedPrompt.of([1, 2], None)]
STARTED = Started(PROMPTS)


def test_one_answer_is_one_object() -> None:
    native = exchange(text="a", rid="mine", return_prompt_token_ids=True)
    body = answer(native, [STARTED, TextDelta(0, "Hi", [5, 499]), END])
    latency = body["meta_info"].pop("e2e_latency")
    assert 0 <= latency < 60
    assert body == {
        "text": "Hi",
        "output_ids": [5, 499],
        "meta_info": {
            "id": "mine",
            "finish_reason": {"type": "stop", "matched": 499},
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "cached_tokens": 3,
            "reasoning_tokens": 0,
            "weight_version": "default",
        },
        "prompt_token_ids": [1, 2],
    }


@pytest.mark.parametrize(
    ("reason", "matched", "shown"),
    [
        (FinishReason.STOP, "END", {"type": "stop", "matched": "END"}),
        (FinishReason.LENGTH, None, {"type": "length", "length": 1}),
        (
            FinishReason.ABORT,
            None,
            {"type": "abort", "message": "The request was aborted.", "status_code": None, "err_type": None},
        ),
    ],
)
def test_the_end_says_why(reason: FinishReason, matched: str | None, shown: dict[str, Any]) -> None:
    body = answer(exchange(text="a"), [STARTED, TextDelta(0, "x", [5]), Finished(0, reason, matched, matched, 1, 0)])
    assert body["meta_info"]["finish_reason"] == shown


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({"text": ["a", "b"], "rid": ["x", "y"]}, ["x", "y"]),
        ({"text": ["a", "b"], "rid": "x"}, ["x_0", "x_1"]),
        ({"text": "a", "rid": "x", "sampling_params": {"n": 2}}, ["x_0", "x_1"]),
        ({"text": ["a", "b"], "rid": ["x", "y"], "sampling_params": {"n": 2}}, ["x_0", "x_1", "y_0", "y_1"]),
        ({"text": ["a"]}, None),
    ],
)
def test_several_answers_are_a_list_with_own_ids(fields: dict[str, Any], ids: list[str] | None) -> None:
    native = exchange(**fields)
    count = len(native.job.prompts) * native.job.n
    events: list[Event] = [Started(PROMPTS * len(native.job.prompts))]
    for index in range(count):
        events += [TextDelta(index, str(index), [index]), Finished(index, FinishReason.LENGTH, None, None, 1, 0)]
    body = answer(native, events)
    assert [item["text"] for item in body] == [str(index) for index in range(count)]
    found = [item["meta_info"]["id"] for item in body]
    assert len(set(found)) == count
    assert ids is None or found == ids


def test_logprobs_are_triples_of_logprob_id_and_text() -> None:
    native = exchange(
        text="a", return_logprob=True, top_logprobs_num=1, logprob_start_len=1, return_text_in_logprobs=True
    )
    other = token(8, "o")
    scored = [TokenLogprob(1, None, "p", b"p"), token(2, "q", other)]
    events = [STARTED, PromptScored(0, scored), TextDelta(0, "Hi", [5], [token(5, "Hi", other)]), END]
    meta = answer(native, events)["meta_info"]
    assert meta["input_token_logprobs"] == [[-0.5, 2, "q"]]
    assert meta["input_top_logprobs"] == [[[-0.5, 8, "o"]]]
    assert meta["output_token_logprobs"] == [[-0.5, 5, "Hi"]]
    assert meta["output_token_logprobs_length"] == 1
    assert meta["output_top_logprobs"] == [[[-0.5, 8, "o"]]]
    plain = answer(exchange(text="a", return_logprob=True), [STARTED, TextDelta(0, "Hi", [5], [token(5, "Hi")]), END])
    assert plain["meta_info"]["input_token_logprobs"] == []
    assert plain["meta_info"]["output_token_logprobs"] == [[-0.5, 5, None]]
    assert "output_top_logprobs" not in plain["meta_info"]


# ---- streams ----

SAID = [STARTED, TextDelta(0, 'H"é\n', [5]), TextDelta(0, "", [6]), TextDelta(0, "i\u2028", [7, 8]), END]


def test_a_stream_is_cumulative() -> None:
    said = documents(exchange(text="a", stream=True), SAID)
    assert [one["text"] for one in said] == ['H"é\n', 'H"é\n', 'H"é\ni\u2028', 'H"é\ni\u2028']
    assert [one["output_ids"] for one in said] == [[5], [5, 6], [5, 6, 7, 8], [5, 6, 7, 8]]
    assert [one["meta_info"]["completion_tokens"] for one in said] == [1, 2, 4, 2]
    assert [one["meta_info"]["finish_reason"] for one in said] == [None] * 3 + [{"type": "stop", "matched": 499}]
    assert {one["meta_info"]["prompt_tokens"] for one in said} == {2}
    assert all("index" not in one for one in said)


@pytest.mark.parametrize(
    ("flag", "field", "is_incremental"), [(True, None, True), (False, True, True), (True, False, False)]
)
def test_a_stream_tells_what_is_new_if_asked_to(flag: bool, field: bool | None, is_incremental: bool) -> None:
    card = make_card(incremental_streaming_output=flag)
    said = documents(exchange(card, text="a", stream=True, incremental_streaming_output=field), SAID)
    assert ([one["text"] for one in said] == ['H"é\n', "", "i\u2028", ""]) is is_incremental
    assert ([one["output_ids"] for one in said] == [[5], [6], [7, 8], []]) is is_incremental
    assert said[2]["meta_info"]["completion_tokens"] == 4


def test_the_last_event_of_a_stream_is_the_whole_answer() -> None:
    fields = {"return_logprob": True, "top_logprobs_num": 1, "logprob_start_len": 0, "return_prompt_token_ids": True}
    other = token(8, "o")
    events: list[Event] = [
        STARTED,
        PromptScored(0, [TokenLogprob(1, None, "p", b"p"), token(2, "q", other)]),
        TextDelta(0, "H", [5], [token(5, "H", other)]),
        TextDelta(0, "i", [6], [token(6, "i")]),
        END,
    ]
    *_, last = documents(exchange(text="a", rid="r", stream=True, **fields), events)
    whole = answer(exchange(text="a", rid="r", **fields), events)
    for document in (last, whole):
        document["meta_info"].pop("e2e_latency")
    assert last == whole


def test_tokens_by_id_have_columns_of_their_own_whole_and_streamed() -> None:
    fields = {"return_logprob": True, "logprob_start_len": 0, "token_ids_logprob": [8]}
    by_id = TokenLogprob(8, -2.0, "o", b"o")
    events: list[Event] = [
        STARTED,
        PromptScored(0, [TokenLogprob(1, None, "p", b"p"), TokenLogprob(2, -0.5, "q", b"q", asked=(by_id,))]),
        TextDelta(0, "H", [5], [TokenLogprob(5, -0.5, "H", b"H", asked=(by_id,))]),
        END,
    ]
    *_, last = documents(exchange(text="a", stream=True, **fields), events)
    for meta in (last["meta_info"], answer(exchange(text="a", **fields), events)["meta_info"]):
        assert meta["input_token_ids_logprobs"] == [None, [[-2.0, 8, None]]]
        assert meta["output_token_ids_logprobs"] == [[[-2.0, 8, None]]]


def test_a_stream_without_a_token_has_its_logprobs_columns_too() -> None:
    fields = {"return_logprob": True, "top_logprobs_num": 1}
    events: list[Event] = [STARTED, Finished(0, FinishReason.LENGTH, None, None, 0, 0)]
    (only,) = documents(exchange(text="a", rid="r", stream=True, **fields), events)
    whole = answer(exchange(text="a", rid="r", **fields), events)
    for document in (only, whole):
        document["meta_info"].pop("e2e_latency")
    assert only == whole
    assert only["meta_info"]["output_top_logprobs"] == only["meta_info"]["input_token_logprobs"] == []


def test_several_answers_of_a_stream_have_their_index() -> None:
    native = exchange(text=["a", "b"], stream=True)
    ends = [Finished(index, FinishReason.LENGTH, None, None, 1, 0) for index in (1, 0)]
    said = documents(native, [Started(PROMPTS * 2), TextDelta(1, "b", [2]), TextDelta(0, "a", [1]), *ends])
    assert [(one["index"], one["text"]) for one in said] == [(1, "b"), (0, "a"), (1, "b"), (0, "a")]


def test_a_stream_ends_with_done_also_after_an_error() -> None:
    native = exchange(text="a", stream=True)
    (done,) = native.last_chunks(Result())
    assert bytes(done.document) == b"[DONE]"
    error, done = native.error_chunks(InvalidRequest("broken"))
    assert error.document["error"]["message"] == "broken"
    assert bytes(done.document) == b"[DONE]"

"""One choice's outputs become events: the same ones however the engine batched its ids."""

import codecs
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiserver.events import Event, Finished, PreparedPrompt, PromptScored, Result, TextDelta
from apiserver.pipeline.decode import Decoder
from apiserver.requests import GenerateJob
from apiserver.tokenizer.byte import SPECIAL_TOKENS, byte_tokenizer_json
from apiserver.tokenizer.hf import HfTokenizer
from engine_bridge.wire import FinishReason, Output, SamplingParams, TokenLogprobs, pack_ids
from tests.unit.pipeline.specimens import SPECIAL, SPECIMENS
from tests.unit.pipeline.test_stop import end_of

BYTES = HfTokenizer(byte_tokenizer_json())
IM_START, IM_END = SPECIAL_TOKENS["<|im_start|>"], SPECIAL_TOKENS["<|im_end|>"]
PROMPT = PreparedPrompt.of(list(b"Say: "), "Say: ")
HARD = "a🎉b>>\n界 \ufffd".encode() + b"\xff\xe4\xbd" + "é>>x".encode()

either_way = pytest.mark.parametrize("skip", [True, False], ids=["special tokens skipped", "special tokens told"])


def job(params: SamplingParams | None = None, **options: Any) -> GenerateJob:
    return GenerateJob([], params or SamplingParams(), max_tokens=None, **options)


def steps(
    token_ids: Sequence[int],
    size: int | Sequence[int],
    reason: FinishReason = FinishReason.LENGTH,
    *,
    stop_token_id: int | None = None,
    with_logprobs: bool = False,
) -> list[Output]:
    """What an engine says that makes these ids, `size` in each step, and ends with the last of them."""
    sizes = itertools.cycle([size] if isinstance(size, int) else size)
    batches: list[Sequence[int]] = []
    at = 0
    while at < len(token_ids) or not batches:
        batches.append(token_ids[at : at + next(sizes)])
        at += len(batches[-1])
        if not token_ids:
            break
    outputs: list[Output] = []
    for number, batch in enumerate(batches):
        last = number == len(batches) - 1
        logprobs = tuple(TokenLogprobs(-float(token_id), ((token_id, -1.0),)) for token_id in batch)
        outputs.append(
            Output(
                1,
                pack_ids(list(batch)),
                reason if last else None,
                stop_token_id if last else None,
                logprobs if with_logprobs else None,
            )
        )
    return outputs


def decoder_of(request: GenerateJob, tokenizer: HfTokenizer = BYTES, prompt: PreparedPrompt = PROMPT) -> Decoder:
    return Decoder(0, request, tokenizer, prompt, (IM_END,))


def run(request: GenerateJob, outputs: list[Output], tokenizer: HfTokenizer = BYTES) -> list[Event]:
    """The events, fed like the pipeline does: nothing after the end."""
    decoder = decoder_of(request, tokenizer)
    events = decoder.start()
    for output in outputs:
        if decoder.finished:
            break
        events += decoder.feed(output)
    return events


def deltas(events: list[Event]) -> list[TextDelta]:
    return [event for event in events if isinstance(event, TextDelta)]


def fold(events: list[Event]) -> tuple[str, list[int], Finished]:
    """The text, the ids and the end."""
    result = Result()
    for event in events:
        result.feed(event)
    choice = result.choices[0]
    assert choice.finished is not None
    assert events[-1] is choice.finished
    assert sum(isinstance(event, Finished) for event in events) == 1
    return choice.text, choice.token_ids, choice.finished


def decided(token_ids: Sequence[int], skip: bool) -> str:
    """The text that these ids alone decide, of bytes: all but the first part of a character at the end."""
    ids = [token_id for token_id in token_ids if not skip or token_id < 256]
    raw = b"".join(BYTES.token_bytes(token_id) for token_id in ids)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw)


@either_way
@settings(deadline=None, max_examples=400)
@given(
    token_ids=st.lists(st.one_of(st.sampled_from([*HARD, IM_START, IM_END]), st.integers(0, 258)), max_size=24),
    stop=st.lists(st.sampled_from([">>", ">>\n", "界", "\ufffd", "🎉b", "a", "é>", "<|im", "\n界"]), max_size=3),
    min_tokens=st.integers(0, 9),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    include=st.booleans(),
)
def test_the_answer_is_that_of_one_id_at_a_time_and_of_the_definition(
    skip: bool, token_ids: list[int], stop: list[str], min_tokens: int, sizes: list[int], include: bool
) -> None:
    request = job(
        SamplingParams(min_tokens=min_tokens),
        stop=tuple(stop),
        include_stop=include,
        skip_special_tokens=skip,
        with_token_ids=True,
    )
    batched = fold(run(request, steps(token_ids, sizes)))
    assert batched == fold(run(request, steps(token_ids, 1)))

    text, returned, finished = batched
    whole = BYTES.decode(token_ids, skip_special_tokens=skip)
    # A stop string ends the answer if it completes in the text of a token behind the first min_tokens.
    protected = len(decided(token_ids[:min_tokens], skip)) if len(token_ids) > min_tokens else len(whole)
    before, matched = end_of(whole, tuple(stop), protected)
    assert text == before + (matched if include and matched else "")
    assert finished.stop_reason == matched
    assert finished.reason is (FinishReason.LENGTH if matched is None else FinishReason.STOP)
    # Every id up to the one whose text completed it, and none behind.
    needed = next(
        (
            count
            for count in range(len(token_ids))
            if matched and len(decided(token_ids[:count], skip)) >= len(before) + len(matched)
        ),
        len(token_ids),
    )
    assert returned == token_ids[:needed]
    assert finished.output_tokens == needed


@settings(deadline=None, max_examples=200)
@given(
    token_ids=st.lists(st.sampled_from([*HARD, IM_START]), max_size=24),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    stop=st.lists(st.sampled_from([">>", "界", "🎉b", "a"]), max_size=2),
)
def test_a_delta_has_text_and_no_part_of_a_stop_string_or_character(
    token_ids: list[int], sizes: list[int], stop: list[str]
) -> None:
    events = run(job(stop=tuple(stop)), steps(token_ids, sizes))
    final, _, finished = fold(events)
    told = ""
    counted = 0
    for delta in deltas(events):
        assert delta.text  # a client without logprobs and ids has no use for an empty delta (vllm-project/vllm#13087)
        told += delta.text
        counted += len(delta.token_ids)
        assert final.startswith(told)
    assert counted <= finished.output_tokens


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("cut", range(len(HARD) + 1))
def test_cut_by_length_the_text_is_the_decode_of_the_ids(size: int, cut: int) -> None:
    token_ids = list(HARD[:cut])
    text, returned, finished = fold(run(job(with_token_ids=True), steps(token_ids, size)))
    assert text == BYTES.decode(token_ids, skip_special_tokens=True)
    assert returned == token_ids
    assert (finished.reason, finished.stop_reason, finished.output_tokens) == (FinishReason.LENGTH, None, cut)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(
    ("skip", "include", "expected"),
    [(True, False, "ab"), (True, True, "ab"), (False, False, "ab"), (False, True, "ab<|im_start|>")],
)
def test_a_special_stop_token_is_told_only_where_both_are_asked_for(  # vllm-project/vllm#3672
    size: int, skip: bool, include: bool, expected: str
) -> None:
    request = job(
        SamplingParams(stop_token_ids=(IM_START,)), skip_special_tokens=skip, include_stop=include, with_token_ids=True
    )
    token_ids = [*b"ab", IM_START]
    text, returned, finished = fold(run(request, steps(token_ids, size, FinishReason.STOP, stop_token_id=IM_START)))
    assert (text, returned, finished.output_tokens) == (expected, token_ids, 3)
    assert (finished.stop_reason, finished.matched_stop) == (IM_START, IM_START)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(
    ("skip", "include", "expected"),
    [(True, False, "ab"), (True, True, "abc"), (False, False, "ab"), (False, True, "abc")],
)
def test_an_ordinary_stop_token_is_told_where_it_is_asked_for(
    size: int, skip: bool, include: bool, expected: str
) -> None:
    request = job(SamplingParams(stop_token_ids=(ord("c"),)), skip_special_tokens=skip, include_stop=include)
    outputs = steps(list(b"abc"), size, FinishReason.STOP, stop_token_id=ord("c"))
    text, _, finished = fold(run(request, outputs))
    assert (text, finished.stop_reason, finished.output_tokens) == (expected, ord("c"), 3)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(
    ("skip", "include", "expected"),
    [(True, False, "ab"), (True, True, "ab"), (False, False, "ab"), (False, True, "ab<|im_end|>")],
)
def test_the_end_token_gives_no_stop_reason(size: int, skip: bool, include: bool, expected: str) -> None:
    request = job(skip_special_tokens=skip, include_stop=include)
    outputs = steps([*b"ab", IM_END], size, FinishReason.STOP, stop_token_id=IM_END)
    text, _, finished = fold(run(request, outputs))
    assert text == expected
    assert (finished.stop_reason, finished.matched_stop, finished.output_tokens) == (None, IM_END, 3)


@pytest.mark.parametrize(
    ("skip", "include", "expected"),
    [(True, False, "ab"), (True, True, "ab##"), (False, False, "ab<|im_start|>"), (False, True, "ab<|im_start|>##")],
)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_stop_string_is_cut_right_next_to_special_tokens(size: int, skip: bool, include: bool, expected: str) -> None:
    request = job(stop=("##",), skip_special_tokens=skip, include_stop=include)
    text, _, finished = fold(run(request, steps([*b"ab", IM_START, *b"##cd"], size)))
    assert (text, finished.stop_reason, finished.output_tokens) == (expected, "##", 5)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
def test_ids_and_logprobs_behind_a_stop_string_in_the_same_step_are_dropped(size: int) -> None:
    request = job(SamplingParams(logprobs=1), stop=("c",), with_token_ids=True)
    events = run(request, steps(list(b"abcdefg"), size, with_logprobs=True))
    text, returned, finished = fold(events)
    assert (text, returned, finished.output_tokens) == ("ab", list(b"abc"), 3)
    scored = [entry.token_id for delta in deltas(events) for entry in delta.logprobs or ()]
    assert scored == list(b"abc")


def test_the_ids_of_held_back_text_come_with_the_next_delta() -> None:  # vllm-project/vllm#51641
    events = run(job(), steps(list("é🎉x".encode()), 1))
    assert [(delta.text, delta.token_ids) for delta in deltas(events)] == [
        ("é", list("é".encode())),
        ("🎉", list("🎉".encode())),
        ("x", list(b"x")),
    ]


def test_a_client_that_wants_ids_gets_them_at_every_step() -> None:
    events = run(job(with_token_ids=True), steps(list("é".encode()), 1))
    assert [(delta.text, delta.token_ids) for delta in deltas(events)] == [("", [0xC3]), ("é", [0xA9])]


def test_a_first_part_of_a_character_is_told_when_the_engine_ends() -> None:
    text, _, _ = fold(run(job(), steps(list(b"a\xf0\x9f\x8e"), 1)))
    assert text == "a\ufffd"


def test_a_stop_string_may_complete_in_the_very_last_character() -> None:
    text, _, finished = fold(run(job(stop=("\ufffd",)), steps(list(b"a\xf0\x9f\x8e"), 2)))
    assert (text, finished.reason, finished.stop_reason) == ("a", FinishReason.STOP, "\ufffd")


def test_text_before_a_stop_string_arrives_however_it_ends() -> None:
    text, _, finished = fold(run(job(stop=("STOP",)), steps(list(b"abST"), 1)))
    assert (text, finished.reason) == ("abST", FinishReason.LENGTH)
    text, _, finished = fold(
        run(job(stop=("STOP",)), steps([*b"abST", IM_END], 1, FinishReason.STOP, stop_token_id=IM_END))
    )
    assert (text, finished.reason) == ("abST", FinishReason.STOP)


def test_an_abort_ends_the_choice_with_what_was_told() -> None:
    decoder = decoder_of(job())
    decoder.feed(steps(list(b"ab"), 2)[0])
    assert decoder.abort() == Finished(0, FinishReason.ABORT, None, None, 2, 0)
    assert decoder.finished


def test_an_answer_of_no_tokens_is_empty_and_has_an_end() -> None:
    text, returned, finished = fold(run(job(), steps([], 1)))
    assert (text, returned, finished.output_tokens) == ("", [], 0)


# ---- logprobs and echo ----


def offsets_of(events: list[Event]) -> list[tuple[str, int]]:
    return [(entry.text, entry.offset) for delta in deltas(events) for entry in delta.logprobs or ()]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_offsets_are_places_in_prompt_and_completion(size: int) -> None:  # xorbitsai/inference#5245
    answer = "aé🎉b\ufffd界c"
    request = job(SamplingParams(logprobs=0))
    told = offsets_of(run(request, steps(list(answer.encode()), size, with_logprobs=True)))
    whole = "Say: " + answer
    expected = [5 + index for index, character in enumerate(answer) for _ in character.encode()]
    assert [offset for _, offset in told] == expected
    assert all(whole[offset:].startswith(text) for text, offset in told if "\ufffd" not in text)


def test_offsets_count_no_token_that_the_text_does_not_have() -> None:
    request = job(SamplingParams(logprobs=0))
    events = run(request, steps([ord("a"), IM_START, ord("b")], 1, with_logprobs=True))
    assert offsets_of(events) == [("a", 5), ("<|im_start|>", 6), ("b", 6)]


def test_offsets_know_what_was_held_back_before_a_token() -> None:
    request = job(SamplingParams(logprobs=0))
    events = run(request, steps([0xE4, *b"a"], 1, with_logprobs=True))
    assert offsets_of(events) == [("\ufffd", 5), ("a", 6)]
    pieces = SPECIMENS["byte fallback"]
    token_ids = pieces.ids("▁the", "<0xE4>", "<0xBD>", "<0xA0>", "▁dog", "ing")
    events = run(request, steps(token_ids, 1, with_logprobs=True), pieces.ours)
    assert [offset for _, offset in offsets_of(events)] == [5, 8, 8, 8, 9, 13]
    assert fold(events)[0] == "the你 doging"


def scored_prompt(prompt: PreparedPrompt, request: GenerateJob, tokenizer: HfTokenizer = BYTES) -> list[Event]:
    entries = (None, *(TokenLogprobs(-1.0) for _ in prompt.token_ids[1:]))
    decoder = decoder_of(request, tokenizer, prompt)
    return [*decoder.start(), *decoder.feed(Output(1, finish_reason=FinishReason.LENGTH, prompt_logprobs=entries))]


def test_an_echo_with_logprobs_tells_the_prompt_with_its_own() -> None:  # vllm-project/vllm#6521
    prompt = PreparedPrompt.of(list("né".encode()), "né")
    request = job(SamplingParams(logprobs=0, prompt_logprobs=0), echo=True)
    scored, delta, finished = scored_prompt(prompt, request)
    assert isinstance(scored, PromptScored)
    assert isinstance(delta, TextDelta)
    assert (delta.text, delta.token_ids, delta.logprobs) == ("né", [], scored.logprobs)
    assert [(entry.logprob, entry.offset) for entry in scored.logprobs] == [(None, 0), (-1.0, 1), (-1.0, 1)]
    assert finished == Finished(0, FinishReason.LENGTH, None, None, 0, 0)


def test_an_echo_without_logprobs_has_none_even_where_the_prompt_is_scored() -> None:
    request = job(SamplingParams(prompt_logprobs=1), echo=True)
    _, delta, _ = scored_prompt(PROMPT, request)
    assert isinstance(delta, TextDelta)
    assert (delta.text, delta.logprobs) == ("Say: ", None)


@pytest.mark.parametrize("text", ["the dog", "<|end|>the dog"])
def test_a_prompts_offsets_are_those_of_the_clients_text(text: str) -> None:
    """The tokenizer's own BOS is no part of what the client wrote; a special token that it wrote is."""
    pieces = SPECIMENS["byte fallback"]
    prompt = PreparedPrompt.of(pieces.ids(SPECIAL, "▁the", "▁dog"), text)
    request = job(SamplingParams(logprobs=0, prompt_logprobs=0), echo=True)
    entries = (None, TokenLogprobs(-1.0), TokenLogprobs(-1.0))
    decoder = decoder_of(request, pieces.ours, prompt)
    scored = decoder.feed(Output(1, prompt_logprobs=entries))[0]
    assert isinstance(scored, PromptScored)
    offsets = [entry.offset for entry in scored.logprobs]
    assert offsets == ([0, 0, 3] if text == "the dog" else [0, 7, 11])


def test_infinite_logprobs_become_numbers_that_json_has() -> None:
    never = -float("inf")
    output = Output(1, pack_ids([97]), FinishReason.LENGTH, None, (TokenLogprobs(never, ((98, never),)),))
    entries = deltas(run(job(SamplingParams(logprobs=1)), [output]))[0].logprobs
    assert entries is not None
    assert (entries[0].logprob, entries[0].top[0].logprob) == (-9999.0, -9999.0)


def test_tokens_asked_for_by_id_come_with_their_texts() -> None:
    output = Output(1, pack_ids([97]), FinishReason.LENGTH, None, (TokenLogprobs(-0.5, (), (-1.0, -2.0)),))
    params = SamplingParams(logprobs=0, token_ids_logprob=(98, 99))
    entries = deltas(run(job(params), [output]))[0].logprobs
    assert entries is not None
    assert [(other.token_id, other.logprob, other.text) for other in entries[0].asked] == [
        (98, -1.0, "b"),
        (99, -2.0, "c"),
    ]


def test_a_long_prompts_logprobs_can_be_had_in_steps_and_are_the_same() -> None:
    prompt = PreparedPrompt.of(list(b"ab" * 1000), "ab" * 1000)
    request = job(echo=True, params=SamplingParams(logprobs=0, prompt_logprobs=0))
    entries = (None, *(TokenLogprobs(-float(number)) for number in range(1, 2000)))
    output = Output(1, prompt_logprobs=entries)
    at_once, in_steps = (decoder_of(request, prompt=prompt) for _ in range(2))
    steps = sum(1 for _ in in_steps.score_prompt(output))
    assert steps >= 2 * len(entries) / 256 - 2  # places, then logprobs
    assert in_steps.feed(output) == at_once.feed(output)

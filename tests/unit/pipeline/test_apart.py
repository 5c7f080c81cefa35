"""Answers that are taken apart: ids and logprobs go with the right deltas, however the engine batched its tokens."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiserver.events import Choice, Event, Finished, PreparedPrompt, ReasoningDelta, Result, TextDelta, ToolCallDelta
from apiserver.pipeline.decode import Decoder
from apiserver.requests import Structure
from apiserver.tokenizer.hf import HfTokenizer
from engine_bridge.wire import FinishReason, SamplingParams
from tests.real_tokenizers import FAST, tokenizer_json
from tests.unit.pipeline.parsers.formats import SAMPLES
from tests.unit.pipeline.parsers.reading import TOOLS, read, structure
from tests.unit.pipeline.test_decode import BYTES, IM_END, PROMPT, job, run, steps

HERMES = Structure("qwen3", "hermes", TOOLS)
CALL = '<tool_call>{"name": "time", "arguments": {"a": 1}}</tool_call>'


def ids(text: str) -> list[int]:
    return list(text.encode())


def choice_of(events: list[Event]) -> tuple[Choice, Finished]:
    result = Result()
    for event in events:
        result.feed(event)
    choice = result.choices[0]
    assert choice.finished is not None
    return choice, choice.finished


def folded(choice: Choice) -> tuple[str, str, list[tuple[str, str]]]:
    return choice.text, choice.reasoning, [(call.name, call.arguments) for call in choice.tool_calls]


@settings(deadline=None, max_examples=300)
@given(
    name=st.sampled_from(sorted(SAMPLES)),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    with_token_ids=st.booleans(),
    with_logprobs=st.booleans(),
    stop=st.sampled_from([(), ("zzzz",), ("\n",), ("e", "s")]),
)
def test_the_fold_is_that_of_one_token_at_a_time_and_every_id_is_told_once(
    name: str, sizes: list[int], with_token_ids: bool, with_logprobs: bool, stop: tuple[str, ...]
) -> None:
    sample = SAMPLES[name]
    request = job(
        SamplingParams(logprobs=1 if with_logprobs else None),
        structure=Structure(sample.reasoning_parser, sample.parser, TOOLS),
        with_token_ids=with_token_ids,
        stop=stop,
    )
    prompt = PreparedPrompt.of([1], sample.prompt_end)
    tokens = ids(sample.text)

    def answer(size: Any) -> tuple[Choice, Finished]:
        decoder, events = Decoder(0, request, BYTES, prompt, (IM_END,)), list[Event]()
        for output in steps(tokens, size, FinishReason.STOP, with_logprobs=with_logprobs):
            if not decoder.finished:
                events += decoder.feed(output)
        return choice_of(events)

    choice, finished = answer(sizes)
    alone, finished_alone = answer(1)
    assert folded(choice) == folded(alone)
    assert finished == finished_alone
    told = tokens[: finished.output_tokens]
    if with_token_ids or with_logprobs:
        assert choice.token_ids == alone.token_ids == told
    else:
        assert choice.token_ids == told[: len(choice.token_ids)]
    if with_logprobs:
        assert [entry.token_id for entry in choice.logprobs or ()] == told
    if not stop:
        expected = read(structure(sample.parser, sample.reasoning_parser), [sample.text], sample.prompt_end)
        assert folded(choice) == tuple(expected)
        assert finished.tool_calls == len(sample.calls)


def test_each_kind_has_deltas_of_its_own_in_the_order_of_the_answer() -> None:
    events = run(job(structure=HERMES, with_token_ids=True), steps(ids(f"<think>Hm</think>Yes.{CALL}"), 100))
    reasoning, text, call, end = events
    assert isinstance(reasoning, ReasoningDelta)
    assert (reasoning.text, bytes(reasoning.token_ids)) == ("Hm", b"<think>Hm")
    assert isinstance(text, TextDelta)
    assert (text.text, bytes(text.token_ids)) == ("Yes.", b"</think>Yes.")
    assert isinstance(call, ToolCallDelta)
    assert (call.call, call.name, json.loads(call.arguments)) == (0, "time", {"a": 1})
    assert bytes(call.token_ids) == CALL.encode()
    assert isinstance(end, Finished)
    assert (end.tool_calls, end.reasoning_tokens) == (
        1,
        len(">Hm</think>"),
    )  # where a byte is a token, the start tag is there with its last


def test_the_arguments_come_as_they_are_made() -> None:
    events = run(job(structure=HERMES), steps(ids(CALL), 1))
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    assert [(delta.name, delta.arguments) for delta in deltas[:2]] == [("time", "{"), (None, '"')]
    assert "".join(delta.arguments for delta in deltas) == '{"a": 1}'
    assert [delta.id is not None for delta in deltas] == [True, *[False] * (len('{"a": 1') - 1)]


@pytest.mark.parametrize(
    ("text", "stop", "content", "reasoning", "calls", "matched"),
    [
        ("<think>a STOP b</think>c STOP d", ("STOP",), "c ", "a STOP b", 0, "STOP"),
        (f"x{CALL}y STOP", ("STOP", "time"), "xy ", "", 1, "STOP"),
        (f"ab{CALL}cd", ("bc",), "abcd", "", 1, None),
        (f"a ST{CALL}", ("STOP",), "a ST", "", 1, None),
        ("a ST", ("STOP",), "a ST", "", 0, None),
        ("a <tool_call>\n", (), "a <tool_call>\n", "", 0, None),
        ("a<tool_call>\n", ("<tool",), "a", "", 0, "<tool"),
        (f"a<tool_call>no STOP{CALL}", ("STOP",), "a<tool_call>no ", "", 0, "STOP"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_stop_strings_are_looked_for_in_the_content_alone(
    text: str, stop: tuple[str, ...], content: str, reasoning: str, calls: int, matched: str | None, size: int
) -> None:
    choice, finished = choice_of(run(job(structure=HERMES, stop=stop), steps(ids(text), size)))
    assert (choice.text, choice.reasoning, len(choice.tool_calls)) == (content, reasoning, calls)
    assert finished.stop_reason == matched
    assert finished.tool_calls == calls


def test_the_stop_string_is_included_if_wanted() -> None:
    request = job(structure=HERMES, stop=("!",), include_stop=True)
    assert choice_of(run(request, steps(ids("Hi! Ho"), 2)))[0].text == "Hi!"


def test_a_call_that_is_cut_off_is_told_as_far_as_it_came_and_ends_for_its_length() -> None:
    choice, finished = choice_of(run(job(structure=HERMES), steps(ids(CALL[: CALL.index("1")]), 4)))
    assert finished.reason is FinishReason.LENGTH
    assert choice.tool_calls[0].arguments == '{"a": '


def test_an_abort_tells_what_was_counted() -> None:
    decoder = Decoder(0, job(structure=HERMES), BYTES, PROMPT, ())
    [output] = steps(ids(f"<think>a</think>{CALL}"), 1000)
    decoder.feed(type(output)(1, output.new_token_ids))
    end = decoder.abort()
    assert (end.reason, end.tool_calls, end.reasoning_tokens) == (FinishReason.ABORT, 1, 10)


@pytest.mark.parametrize(("text", "reasons"), [("a<think>\n", True), ("a<think>\n\n</think>\n\n", False), ("a", False)])
@pytest.mark.parametrize("as_ids", [True, False])
def test_the_end_of_the_prompt_opens_the_reasoning(text: str, reasons: bool, as_ids: bool) -> None:
    prompt = PreparedPrompt.of(ids(text), None if as_ids else text)
    decoder = Decoder(0, job(structure=HERMES), BYTES, prompt, ())
    choice, _ = choice_of(list(decoder.feed(steps(ids("Hm"), 9)[0])))
    assert (choice.reasoning, choice.text) == (("Hm", "") if reasons else ("", "Hm"))


@pytest.mark.parametrize("name", FAST)
def test_with_real_tokens_the_parser_sees_its_markers_and_the_content_no_control_tokens(name: str) -> None:
    from tokenizers import Tokenizer

    backend = Tokenizer.from_str(tokenizer_json(name))
    tokenizer = HfTokenizer(tokenizer_json(name))
    special = {
        "qwen3": ("hermes", "qwen3", f"<think>\nHm\n</think>\n\nJa.\n{CALL}<|im_end|>"),
        "deepseek": (
            "deepseek_v3",
            "deepseek-v3",
            f"<think>Hm</think>Ja.{SAMPLES['deepseekv3'].text[3:]}<｜end▁of▁sentence｜>",
        ),
        "smollm2": ("hermes", "qwen3", f"<think>Hm</think>Ja.{CALL}<|im_end|>"),
        "mistral": (
            "mistral",
            "qwen3",
            '<think>Hm</think>Ja.[TOOL_CALLS] [{"name": "time", "arguments": {"a": 1}}]</s>',
        ),
    }
    calls, reasoning, text = special[name]
    tokens = backend.encode(text, add_special_tokens=False).ids
    request = job(structure=Structure(reasoning, calls, TOOLS), with_token_ids=True)
    for size in (1, 3, 1000):
        choice, _ = choice_of(run(request, steps(tokens, size), tokenizer))
        assert (choice.text.strip(), choice.reasoning.strip()) == ("Ja.", "Hm")
        assert len(choice.tool_calls) == 1
        assert choice.token_ids == tokens


def test_control_tokens_are_told_where_the_client_wants_them() -> None:
    text = [*ids("a"), IM_END, *ids(CALL)]
    for skip, content in ((True, "a"), (False, "a<|im_end|>")):
        choice, _ = choice_of(run(job(structure=HERMES, skip_special_tokens=skip), steps(text, 1)))
        assert (choice.text, len(choice.tool_calls)) == (content, 1)

"""The estimate that keeps long work off the loop: everything in a job counts, and counting is cheap itself."""

from typing import Any

import pytest

from apiserver.pipeline.pace import Pace, measure
from apiserver.requests import (
    Chat,
    DetokenizeJob,
    EmbedJob,
    GenerateJob,
    Prompt,
    PromptJob,
    RenderJob,
    Text,
    TokenIds,
    TokenizeJob,
)
from apiserver.tokenizer.byte import byte_tokenizer_json
from apiserver.tokenizer.hf import HfTokenizer
from engine_bridge.wire import SamplingParams

LIMIT = 0.002
PACE = Pace(per_text=1e-5, per_character=1e-6, per_unbroken_character=1e-6)
HI: dict[str, Any] = {"role": "user", "content": "Hi"}


def seconds(*prompts: Prompt) -> float:
    return PACE.seconds(EmbedJob([*prompts]), LIMIT)


def chat(**fields: Any) -> Chat:
    return Chat(**{"messages": [HI], **fields})


def test_every_text_costs_something_and_every_character_too() -> None:
    assert seconds(Text("x" * 1000, "input")) == pytest.approx(0.001, rel=0.05)
    assert seconds(*(Text("x", f"input[{number}]") for number in range(300))) > LIMIT
    assert seconds(*(TokenIds([1] * 16, f"input[{number}]") for number in range(1024))) > LIMIT


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": "x" * 2000}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 10}] * 200}]},
        {"messages": [HI] * 500},
        {"messages": [{"role": "user", "content": "", "reasoning_content": "x" * 2000}]},
        {"tools": [{"type": "function", "function": {"name": "f", "description": "x" * 2000}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x" * 2000: 1}}}]},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"enum": [1] * 1000}}}]},
        {"documents": [{"text": "x" * 2000}]},
        {"variables": {"rules": "x" * 2000}},
    ],
)
def test_whatever_a_template_may_print_counts(fields: dict[str, Any]) -> None:
    assert seconds(chat()) < LIMIT / 10
    assert seconds(chat(**fields)) > LIMIT


def test_ids_are_cheap_unless_their_text_is_wanted() -> None:
    prompts = [TokenIds([1] * 10_000, "prompt")]
    params = SamplingParams()
    cheap: list[PromptJob] = [EmbedJob([*prompts]), GenerateJob([*prompts], params, 1), TokenizeJob([*prompts])]
    dear: list[PromptJob] = [
        DetokenizeJob(prompts),
        RenderJob(GenerateJob([*prompts], params, 1)),
        GenerateJob([*prompts], params, 1, echo=True),
        GenerateJob([*prompts], SamplingParams(logprobs=0), 1),
    ]
    assert all(PACE.seconds(job, LIMIT) < LIMIT for job in cheap)
    assert all(PACE.seconds(job, LIMIT) > LIMIT for job in dear)


def test_each_tokens_own_text_costs_more_than_the_ids_alone() -> None:
    prompts: list[Prompt] = [Text("x" * 1000, "prompt")]
    plain, with_texts = (TokenizeJob(prompts, with_token_texts=wanted) for wanted in (False, True))
    assert PACE.seconds(with_texts, LIMIT) > PACE.seconds(plain, LIMIT)


def test_nothing_is_nested_too_deeply_to_be_counted() -> None:
    value: Any = "x"
    for _ in range(100_000):
        value = [value]
    assert seconds(chat(variables={"deep": value})) > 0
    while isinstance(value, list):  # taken apart: the interpreter's own end of so deep a list recurses
        value = value.pop()


class CountedList(list[Any]):
    """Knows how many of its items were looked at."""

    looks = 0

    def __iter__(self) -> Any:
        for item in super().__iter__():
            self.looks += 1
            yield item


def test_counting_ends_where_enough_is_known() -> None:
    prompts: Any = CountedList(Text("x" * 1000, f"input[{number}]") for number in range(2048))
    assert PACE.seconds(EmbedJob(prompts), LIMIT) > LIMIT
    assert prompts.looks <= 3


@pytest.mark.parametrize(
    ("text", "is_slow"),
    [
        ("a few words of prose, and so on. " * 500, False),
        ("    if indented:\n        return code  # of any depth\n" * 300, False),
        ("a" * 15_000, True),
        (" " * 15_000, True),
        ("\n" * 15_000, True),
        ("=-" * 7_500, True),
        ("没有空格的文字，一直写下去。" * 1100, True),
        ("some words of prose " * 300 + "a" * 15_000, True),
    ],
)
@pytest.mark.parametrize("in_a_chat", [False, True])
def test_what_no_white_space_breaks_is_expected_to_take_longer(text: str, is_slow: bool, in_a_chat: bool) -> None:
    pace = Pace(per_text=0.0, per_character=1e-8, per_unbroken_character=1e-6)
    prompt = chat(messages=[HI, {"role": "user", "content": text}]) if in_a_chat else Text(text, "input")
    assert (pace.seconds(EmbedJob([prompt]), LIMIT) > LIMIT) == is_slow


def test_a_text_too_short_to_be_slow_is_not_looked_at() -> None:
    pace = Pace(per_text=0.0, per_character=1e-8, per_unbroken_character=1e-6)
    assert pace.seconds(EmbedJob([Text("a" * 1900, "input")]), LIMIT) < LIMIT / 10


def test_the_pace_is_measured_on_the_encoder_itself() -> None:
    pace = measure(HfTokenizer(byte_tokenizer_json()))
    assert 0 < pace.per_text < 0.01
    assert 0 < pace.per_character <= pace.per_unbroken_character < 1e-4

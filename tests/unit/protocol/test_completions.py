"""Completions without a server: bytes to a job, events to chunks."""

import json
from typing import Any

import pytest

from apiserver.errors import InvalidRequest
from apiserver.events import Event, Finished, PreparedPrompt, Result, Started, TextDelta
from apiserver.http import sse
from apiserver.protocol.completions import Completion
from apiserver.requests import Text, TokenIds
from engine_bridge.wire import FinishReason
from tests.bodies import read
from tests.unit.protocol.cards import make_card


def exchange(card: Any = None, **fields: Any) -> Completion:
    return Completion(json.dumps({"prompt": "a", **fields}).encode(), card or make_card())


def refusal(card: Any = None, **fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        exchange(card, **fields)
    return caught.value


def test_a_bare_prompt_gets_sixteen_tokens() -> None:
    job = exchange().job
    assert (job.prompts, job.max_tokens, job.n, job.echo) == ([Text("a", "prompt", True)], 16, 1, False)


def test_prompts_come_in_four_forms() -> None:
    assert exchange(prompt=["a", "b"], add_special_tokens=False).job.prompts == [
        Text("a", "prompt[0]", False),
        Text("b", "prompt[1]", False),
    ]
    assert exchange(prompt=[1, 2]).job.prompts == [TokenIds([1, 2], "prompt")]
    assert exchange(prompt=[[1], [2]]).job.prompts == [TokenIds([1], "prompt[0]"), TokenIds([2], "prompt[1]")]


def test_no_tokens_at_all_may_be_asked_for_only_where_the_prompt_is_the_answer() -> None:
    assert exchange(max_tokens=0, echo=True).job.max_tokens == 0
    assert refusal(max_tokens=0).param == "max_tokens"
    assert refusal(max_tokens=0, echo=False).param == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "own", "prompts"),
    [
        ({}, None, None),
        ({"logprobs": 0}, 0, None),
        ({"logprobs": 3}, 3, None),
        ({"logprobs": 3, "echo": True}, 3, 3),
        ({"logprobs": 0, "echo": True}, 0, 0),
        ({"logprobs": 3, "echo": True, "prompt_logprobs": 1}, 3, 1),
        ({"echo": True}, None, None),
        ({"prompt_logprobs": 2}, None, 2),
    ],
)
def test_echo_with_logprobs_scores_the_prompt_too(fields: dict[str, Any], own: int | None, prompts: int | None) -> None:
    params = exchange(**fields).job.sampling_params
    assert (params.logprobs, params.prompt_logprobs) == (own, prompts)


def test_an_engine_that_cannot_score_the_prompt_says_so_under_the_name_that_was_sent() -> None:
    card = make_card(able={"prompt_logprobs": False})
    assert refusal(card, echo=True, logprobs=0).param == "echo"
    assert exchange(card, echo=True).job.echo
    assert exchange(card, logprobs=0).job.sampling_params.logprobs == 0


def test_a_schema_as_text_is_one_constraint_among_the_others() -> None:
    schema = '{"type": "object"}'
    assert exchange(json_schema=schema).job.sampling_params.json_schema == schema
    assert refusal(json_schema="{").param == "json_schema"
    assert refusal(json_schema="[1]").param == "json_schema"
    assert refusal(json_schema=schema, regex="a").param == "regex"
    assert refusal(make_card(able={"json_schema": False}), json_schema=schema).param == "json_schema"


@pytest.mark.parametrize(
    ("n", "best_of", "fine"), [(None, 1, True), (3, 3, True), (3, 1, True), (None, 2, False), (3, 4, False)]
)
def test_the_best_of_as_many_as_are_returned_is_no_choice(n: int | None, best_of: int, fine: bool) -> None:
    if fine:
        assert exchange(n=n, best_of=best_of).job.n == (n or 1)
    else:
        assert refusal(n=n, best_of=best_of).param == "best_of"


def test_choices_are_numbered_prompt_by_prompt() -> None:
    prompts = [PreparedPrompt.of([1], "a"), PreparedPrompt.of([2, 3], "b")]
    events: list[Event] = [Started(prompts)]
    for index in range(4):
        events += [TextDelta(index, str(index), [index]), Finished(index, FinishReason.STOP, None, None, 1, 0)]
    completion = exchange(prompt=["a", "b"], n=2, return_token_ids=True)
    result = Result()
    for event in events:
        result.feed(event)
    body = read(completion.body(result))
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [(0, "0"), (1, "1"), (2, "2"), (3, "3")]
    assert [choice["prompt_token_ids"] for choice in body["choices"]] == [[1], [1], [2, 3], [2, 3]]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 4)
    assert body["object"] == "text_completion"


def test_a_stream_has_nothing_before_the_first_token() -> None:
    """Load tools take any chunk with choices for the first token."""
    completion = exchange(stream=True)
    events: list[Event] = [Started([PreparedPrompt.of([1], "a")]), TextDelta(0, 'x"\n', [1])]
    frames = [sse.encode(chunk) for event in events for chunk in completion.chunks(event)]
    assert len(frames) == 1
    assert json.loads(frames[0].removeprefix(b"data: "))["choices"][0]["text"] == 'x"\n'

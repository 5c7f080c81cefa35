"""Outputs that wait are merged: the same tokens, logprobs and end, in one piece."""

from hypothesis import given
from hypothesis import strategies as st

from engine_bridge.merge import merged, portion
from engine_bridge.wire import (
    Embedding,
    Failure,
    FailureKind,
    FinishReason,
    Output,
    TokenLogprobs,
    pack_ids,
    unpack_ids,
)


def outputs(request_id: int, steps: list[list[int]], *, scored: bool = False) -> list[Output]:
    made = [
        Output(
            request_id,
            pack_ids(ids),
            logprobs=tuple(TokenLogprobs(-float(token)) for token in ids) if scored else None,
            queued_seconds=0.0 if number else 1.5,
            cached_tokens=0 if number else 7,
        )
        for number, ids in enumerate(steps)
    ]
    return [*made, Output(request_id, pack_ids([9]), FinishReason.STOP, 9, (TokenLogprobs(-9.0),) if scored else None)]


@given(st.lists(st.lists(st.integers(0, 8), max_size=3), max_size=20), st.booleans())
def test_one_requests_outputs_become_one_that_says_the_same(steps: list[list[int]], scored: bool) -> None:
    [one] = merged(outputs(5, steps, scored=scored))
    assert isinstance(one, Output)
    ids = [token for step in steps for token in step] + [9]
    assert unpack_ids(one.new_token_ids) == ids
    assert (one.request_id, one.finish_reason, one.stop_token_id) == (5, FinishReason.STOP, 9)
    assert one.logprobs == (tuple(TokenLogprobs(-float(token)) for token in ids) if scored else None)
    if steps:
        assert (one.queued_seconds, one.cached_tokens) == (1.5, 7)


def test_prompt_logprobs_stay_with_the_first() -> None:
    first = Output(1, prompt_logprobs=(None, TokenLogprobs(-1.0)))
    [one] = merged([first, *outputs(1, [[2]])])
    assert isinstance(one, Output)
    assert one.prompt_logprobs == first.prompt_logprobs


def test_requests_are_not_mixed_and_other_answers_stay_as_they_are() -> None:
    failure, vector = Failure(3, FailureKind.INTERNAL, "no"), Embedding(4, b"")
    first, second = outputs(1, [[1], [2]]), outputs(2, [[3], [4]])
    result = merged([first[0], failure, second[0], first[1], vector, second[1], first[2], second[2]])
    assert (result[1], result[3]) == (failure, vector)
    assert [unpack_ids(answer.new_token_ids) for answer in result if isinstance(answer, Output)] == [
        [1, 2, 9],
        [3, 4, 9],
    ]


@given(
    st.lists(st.lists(st.integers(0, 8), max_size=9), max_size=9), st.booleans(), st.integers(1, 7), st.integers(0, 7)
)
def test_portions_are_small_and_say_the_same_together(
    steps: list[list[int]], scored: bool, most: int, more: int
) -> None:
    failure = Failure(3, FailureKind.INTERNAL, "no")
    whole = [*outputs(1, steps, scored=scored), failure, *merged(outputs(2, steps, scored=scored))]
    rest, taken = list(whole), list[Output | Failure]()
    while rest:
        part, rest = portion(rest, of_one=most, of_all=most + more)
        assert part
        made = [answer for answer in part if isinstance(answer, Output)]
        sizes = [len(unpack_ids(answer.new_token_ids)) for answer in made]
        assert sum(sizes) <= most + more
        assert max(sizes, default=0) <= most
        for answer in made:
            assert answer.logprobs is None or len(answer.logprobs) == len(unpack_ids(answer.new_token_ids))
        taken += part
    assert merged(taken) == merged(whole)
    assert [answer for answer in taken if answer is failure] == [failure]


def test_prompt_logprobs_are_in_the_first_portion_alone() -> None:
    first = Output(1, pack_ids([1, 2, 3]), prompt_logprobs=(None, TokenLogprobs(-1.0)))
    [head], [tail] = portion([first], of_one=2, of_all=9)
    assert isinstance(head, Output)
    assert isinstance(tail, Output)
    assert (head.prompt_logprobs, tail.prompt_logprobs) == (first.prompt_logprobs, None)

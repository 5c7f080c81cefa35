"""The fold of a job's events."""

from apiserver.events import Finished, PreparedPrompt, Result, Started, TextDelta, TokenLogprob
from engine_bridge.wire import FinishReason


def test_what_was_cached_of_a_prompt_counts_once_however_many_choices_it_has() -> None:
    """vllm#56361: a client that subtracts the cached tokens from the prompt's must not get below nothing."""
    result = Result()
    result.feed(Started([PreparedPrompt.of([1] * 10, None), PreparedPrompt.of([2] * 8, None)]))
    for index, cached in enumerate((4, 9, 9, 0, 7, 7)):
        result.feed(Finished(index, FinishReason.STOP, None, None, 1, cached))
    assert (result.prompt_tokens, result.cached_tokens) == (18, 4)
    assert Result().cached_tokens == 0


def test_logprobs_are_gathered_and_the_deltas_keep_theirs() -> None:
    result = Result()
    deltas = [TextDelta(0, text, [65], [TokenLogprob(65, -0.5, text, text.encode())]) for text in "ab"]
    for delta in deltas:
        result.feed(delta)
    assert [one.text for one in result.choices[0].logprobs or ()] == ["a", "b"]
    assert [len(delta.logprobs or ()) for delta in deltas] == [1, 1]

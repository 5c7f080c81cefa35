"""SGLang's chunks as answers: those that its scheduler rarely gives. (The others are in tests/sglang, from itself.)"""

import math
from typing import Any

import pytest

from engine_bridge.engines.sglang_answers import Answers, failure
from engine_bridge.wire import Embed, Failure, FailureKind, FinishReason, Generate, Output, SamplingParams, unpack_ids


def generate(**params: Any) -> Generate:
    return Generate(1, b"\0" * 4, SamplingParams(**params))


def chunk(ids: list[int], reason: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"output_ids": ids, "meta_info": {"finish_reason": reason, **more}}


def output(answers: Answers, given: dict[str, Any]) -> Output:
    answer = answers.take(given)
    assert isinstance(answer, Output)
    return answer


def test_the_token_that_an_abort_says_again_is_dropped() -> None:
    answers = Answers(generate())
    output(answers, chunk([5, 6]))
    end = output(answers, {**chunk([6], {"type": "abort", "message": "m"}), "text": ""})
    assert (end.new_token_ids, end.finish_reason) == (b"", FinishReason.ABORT)
    assert answers.ended


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, FailureKind.INVALID),
        (503, FailureKind.OVERLOADED),
        (500, FailureKind.INTERNAL),
    ],
)
def test_an_abort_with_a_status_is_a_failure(status: int, kind: FailureKind) -> None:
    reason = {"type": "abort", "message": "two\nlines", "status_code": status, "err_type": None}
    answers = Answers(generate())
    end = answers.take(chunk([], reason))
    assert isinstance(end, Failure)
    assert end.kind is kind
    assert "\n" not in end.message
    assert answers.ended
    assert failure(1, status, "x").kind is kind


def test_nan_in_the_model_is_an_error() -> None:
    end = output(Answers(generate()), chunk([2], {"type": "stop", "matched": "NaN happened"}))
    assert (end.finish_reason, end.stop_token_id) == (FinishReason.ERROR, None)


def test_a_stop_token_is_found_in_several_tokens_of_a_step() -> None:
    answers = Answers(generate(ignore_eos=True, stop_token_ids=(9,), min_tokens=2))
    assert output(answers, chunk([9, 5])).finish_reason is None  # too early
    end = output(answers, chunk([9, 7, 7]))
    assert unpack_ids(end.new_token_ids) == [9]
    assert (end.finish_reason, end.stop_token_id) == (FinishReason.STOP, 9)


def test_an_impossible_tokens_logprob_can_be_json() -> None:
    meta = {"output_token_logprobs": [(-math.inf, 5, None)], "output_top_logprobs": [[(-0.1, 7, None)]]}
    entries = output(Answers(generate(logprobs=1)), chunk([5], None, **meta)).logprobs
    assert entries is not None
    assert (entries[0].logprob, entries[0].top) == (-9999.0, ((7, -0.1),))


def test_a_vector_with_nan_is_a_failure() -> None:
    end = Answers(Embed(1, b"\0" * 4)).take({"embedding": [0.1, math.nan], "meta_info": {}})
    assert isinstance(end, Failure)
    assert end.kind is FailureKind.INTERNAL

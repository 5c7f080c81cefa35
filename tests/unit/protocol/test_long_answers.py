"""An answer with the logprobs of many tokens is written piece by piece, and says what it would say at once."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from apiserver.events import Finished, PreparedPrompt, PromptScored, Result, Started, TextDelta, TokenLogprob
from apiserver.protocol.chat_completions import ChatCompletion
from apiserver.protocol.completions import Completion
from apiserver.protocol.exchange import OpenExchange, Pieces
from apiserver.protocol.generate import Generate
from apiserver.protocol.listed import Listed, written
from apiserver.protocol.token_generate import TokenGenerate
from engine_bridge.wire import FinishReason
from tests.unit.protocol.cards import make_card
from tests.unit.protocol.test_any_input import ResponseOfBytes

TOKENS = 1000
MOST_PIECE = 64 * 1024
SCORED = [
    TokenLogprob(number, -0.5, "a", b"a", tuple(TokenLogprob(other, -1.0, "b", b"b") for other in range(20)))
    for number in range(TOKENS)
]
PROMPT = [TokenLogprob(0, None, "a", b"a"), *SCORED[1:]]
HI = [{"role": "user", "content": "Hi"}]


def result_of(*, prompt: bool) -> Result:
    result = Result()
    result.feed(Started([PreparedPrompt.of(list(range(TOKENS)), "a" * TOKENS)]))
    if prompt:
        result.feed(PromptScored(0, PROMPT))
    for scored in SCORED:
        result.feed(TextDelta(0, "a", [scored.token_id], [scored]))
    result.feed(Finished(0, FinishReason.LENGTH, None, None, TOKENS, 0))
    return result


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize(
    ("dialect", "asked", "of_prompt", "count"),
    [
        (ChatCompletion, {"messages": HI, "logprobs": True, "top_logprobs": 20}, {"prompt_logprobs": 20}, "content"),
        (Completion, {"prompt": "a", "logprobs": 20}, {"prompt_logprobs": 20}, "token_logprobs"),
        (
            Generate,
            {"text": "a", "return_logprob": True, "top_logprobs_num": 20},
            {"logprob_start_len": 0},
            "output_token_logprobs",
        ),
        (ResponseOfBytes, {"input": "a", "top_logprobs": 20}, {}, "logprobs"),
        (TokenGenerate, {"token_ids": [1], "sampling_params": {"logprobs": 20, "prompt_logprobs": 20}}, {}, "content"),
    ],
)
def test_no_piece_of_an_answer_has_the_logprobs_of_many_tokens(
    dialect: Any, asked: dict[str, Any], of_prompt: dict[str, Any], count: str, prompt: bool
) -> None:
    fields = asked | (of_prompt if prompt else {})
    exchange: OpenExchange = dialect(json.dumps(fields).encode(), make_card(max_model_len=4000))
    document = exchange.body(result_of(prompt=prompt)).document
    assert isinstance(document, Pieces)
    pieces = list(document.pieces)
    if dialect is ResponseOfBytes:
        assert len(pieces) > TOKENS // 64  # what is done meanwhile; all is told by the last one
    else:
        assert max(map(len, pieces)) < MOST_PIECE
    found = [values for name, values in lists_in(json.loads(b"".join(pieces))) if name == count]
    assert [len(values) for values in found] == [TOKENS]


def lists_in(value: Any) -> Iterator[tuple[str, list[Any]]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            if isinstance(inner, list):
                yield name, inner
            yield from lists_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from lists_in(inner)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100])
def test_a_listed_list_is_the_list(count: int) -> None:
    def document(many: Any) -> dict[str, Any]:
        rows = [{"a": many({"n": number} for number in range(count)), "b": []}, {"a": many(iter(["x"])), "b": {}}]
        return {"rows": rows, 'q"uote': {"inner": many(iter(range(count)))}, "ids": [1, 2], "none": None, "empty": {}}

    assert json.loads(b"".join(written(document(Listed)).pieces)) == document(list)
    assert json.loads(b"".join(written([document(Listed)]).pieces)) == [document(list)]


def test_the_fold_does_not_copy_the_logprobs_with_every_token() -> None:
    """A stream of n tokens would cost n²/2 of them."""
    result = Result()
    result.feed(Started([PreparedPrompt.of([1], "a")]))
    result.feed(TextDelta(0, "a", [1], SCORED[:1]))
    kept = result.choices[0].logprobs
    result.feed(TextDelta(0, "a", [1], SCORED[1:2]))
    assert result.choices[0].logprobs is kept
    assert (kept, SCORED[:1]) == (SCORED[:2], [SCORED[0]])

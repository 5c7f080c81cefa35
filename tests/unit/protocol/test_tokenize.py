"""Tokenize and detokenize without a server: which job they mean, and both dialects' answers."""

import json
from typing import Any

import msgspec
import pytest

from apiserver.errors import InvalidRequest
from apiserver.events import Detokenized, PreparedPrompt, Result, Started
from apiserver.protocol.tokenize import Detokenize, Tokenize
from apiserver.requests import Chat, Text, TokenIds
from tests.unit.protocol.cards import make_card


def tokenize(**fields: Any) -> Tokenize:
    return Tokenize(json.dumps(fields).encode(), make_card())


def detokenize(**fields: Any) -> Detokenize:
    return Detokenize(json.dumps(fields).encode(), make_card())


def answer(exchange: Tokenize | Detokenize, result: Result) -> Any:
    return json.loads(msgspec.json.encode(exchange.body(result).document))


def test_a_prompt_is_encoded_with_special_tokens_and_a_conversation_without() -> None:
    assert tokenize(prompt="a").job.prompts == [Text("a", "prompt", True)]
    assert tokenize(prompt="a", add_special_tokens=False).job.prompts == [Text("a", "prompt", False)]
    [conversation] = tokenize(messages=[{"role": "user", "content": "a"}]).job.prompts
    assert isinstance(conversation, Chat)
    assert not conversation.add_special_tokens


def test_one_prompt_gives_one_list_and_several_give_lists() -> None:
    result = Result()
    result.feed(Started([PreparedPrompt.of([1, 2], "ab", ["a", "b"])]))
    assert answer(tokenize(prompt="ab"), result) == {"tokens": [1, 2], "count": 2, "max_model_len": 1000}
    assert answer(tokenize(prompt=["ab"]), result) == {"tokens": [[1, 2]], "count": [2], "max_model_len": 1000}
    assert answer(tokenize(prompt="ab", return_token_strs=True), result)["token_strs"] == ["a", "b"]


@pytest.mark.parametrize(
    "fields", [{}, {"prompt": None}, {"prompt": "a", "messages": []}, {"prompt": "a", "messages": [{}]}]
)
def test_one_of_prompt_and_messages_is_given(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="Exactly one"):
        tokenize(**fields)


@pytest.mark.parametrize(
    ("tokens", "lists"),
    [
        ([1, 2.0], [TokenIds([1, 2], "tokens")]),
        ([[1], [2]], [TokenIds([1], "tokens[0]"), TokenIds([2], "tokens[1]")]),
        ([], [TokenIds([], "tokens")]),
        ([[]], [TokenIds([], "tokens[0]")]),
    ],
)
def test_ids_come_alone_or_in_lists_and_may_be_none(tokens: list[Any], lists: list[TokenIds]) -> None:
    assert detokenize(tokens=tokens).job.prompts == lists


def test_the_text_stands_under_both_keys() -> None:
    result = Result()
    result.feed(Detokenized(0, "a"))
    assert answer(detokenize(tokens=[1]), result) == {"text": "a", "prompt": "a"}
    assert answer(detokenize(tokens=[[1]]), result) == {"text": ["a"], "prompt": ["a"]}
    assert detokenize(tokens=[1]).job.skip_special_tokens
    assert not detokenize(tokens=[1], skip_special_tokens=False).job.skip_special_tokens

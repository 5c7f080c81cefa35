"""The four forms of a prompt, and what is none of them."""

from typing import Any

import pytest

from apiserver.errors import InvalidRequest
from apiserver.protocol.prompts import prompts, token_ids
from apiserver.requests import Text, TokenIds


def test_each_form_becomes_its_prompts() -> None:
    assert prompts("a", "p", 9, True) == [Text("a", "p", True)]
    assert prompts(["a", "b"], "p", 9, False) == [Text("a", "p[0]", False), Text("b", "p[1]", False)]
    assert prompts([1, 2], "p", 9, True) == [TokenIds([1, 2], "p")]
    assert prompts([[1], [2, 3]], "p", 9, True) == [TokenIds([1], "p[0]"), TokenIds([2, 3], "p[1]")]
    assert prompts([1.0, 2], "p", 9, True) == [TokenIds([1, 2], "p")]
    assert prompts([[1, 2.0]], "p", 9, True) == [TokenIds([1, 2], "p[0]")]


def test_a_list_of_ids_is_one_prompt_however_long_and_a_list_of_prompts_is_counted() -> None:
    assert len(prompts(list(range(100)), "p", 3, True)) == 1
    with pytest.raises(InvalidRequest, match="p has 4 items; at most 3"):
        prompts(["a"] * 4, "p", 3, True)


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, "p"),
        ("", "p"),
        ([], "p"),
        ([""], "p[0]"),
        ([[]], "p[0]"),
        ([True], "p"),
        ([1, None], "p"),
        (["a", 1], "p[1]"),
    ],
)
def test_the_wrong_item_is_named(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prompts(value, "p", 9, True)
    assert caught.value.param == param


def test_empty_prompts_are_for_routes_that_ask_no_model() -> None:
    assert prompts("", "p", 9, True, allow_empty=True) == [Text("", "p", True)]
    assert prompts(["", "a"], "p", 9, True, allow_empty=True) == [Text("", "p[0]", True), Text("a", "p[1]", True)]
    assert token_ids([], "p", allow_empty=True) == []
    with pytest.raises(InvalidRequest, match="is empty"):
        prompts([], "p", 9, True, allow_empty=True)

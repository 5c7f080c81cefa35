"""Prompts and ids that are none, or too long for the context, and those that are cut because that was asked for."""

from typing import Any

import httpx
import pytest

from tests.conftest import StartPool
from tests.e2e.refusals import (
    CHAT,
    COMPLETIONS,
    CONTEXT,
    DETOKENIZE,
    GENERATING,
    GOOD,
    HI,
    TOKENIZE,
    VOCABULARY,
    cpu_seconds,
    error_of,
    good,
    post,
    refused,
)
from tests.pool import ECHO_TEMPLATE, Pool

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("prompt", "param", "says"),
    [
        (None, "prompt", "required"),
        ("", "prompt", "empty"),
        ([], "prompt", "empty"),
        ([""], "prompt[0]", "empty"),
        (["a", ""], "prompt[1]", "empty"),
        ([[]], "prompt[0]", "empty"),
        ([[72], []], "prompt[1]", "empty"),
        (5, "prompt", "Expected"),
        ({}, "prompt", "Expected"),
        (True, "prompt", "Expected"),
        ([None], "prompt[0]", "must be a string, or a list of token ids"),
        ([{}], "prompt[0]", "must be a string, or a list of token ids"),
        ([True], "prompt", "integers"),
        ([72, True], "prompt", "integers"),
        ([72, "a"], "prompt", "integers"),
        ([72, [105]], "prompt", "integers"),
        ([72, 1.5], "prompt", "integers"),
        ([1.5], "prompt", "integers"),
        ([72, None], "prompt", "integers"),
        (["a", 72], "prompt[1]", "must be a string"),
        (["a", [72]], "prompt[1]", "must be a string"),
        ([[72], "a"], "prompt[1]", "list of token ids"),
        ([[72], 72], "prompt[1]", "list of token ids"),
        ([[72, "a"]], "prompt[0]", "integers"),
        ([[72, False]], "prompt[0]", "integers"),
        ([0, 10**7], "prompt", f"token id 10000000; this model's ids are 0 to {VOCABULARY - 1}"),
        ([VOCABULARY], "prompt", f"token id {VOCABULARY};"),
        ([-1], "prompt", "token id -1;"),
        ([2**31], "prompt", "token id 2147483648;"),
        ([2**63], "prompt", "token id 9223372036854775808;"),
        ([10**100], "prompt", "token id 1000000"),
        ([[72], [VOCABULARY]], "prompt[1]", f"token id {VOCABULARY};"),
    ],
)
def test_a_prompt_that_is_none_is_a_400_that_names_the_item(
    echo_client: httpx.Client, prompt: Any, param: str, says: str
) -> None:
    refused(echo_client, COMPLETIONS, {"prompt": prompt}, param, says)


def test_the_largest_id_is_one_below_the_vocabularys_size(echo_client: httpx.Client) -> None:
    assert post(echo_client, COMPLETIONS, {"prompt": [0, VOCABULARY - 1, 65], "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize(
    ("ids", "says"), [([], "empty"), ([VOCABULARY], "ids are 0 to"), (["a"], "Expected `int`"), (5, "Expected")]
)
def test_input_ids_of_a_chat_are_checked_like_any_prompt(echo_client: httpx.Client, ids: Any, says: str) -> None:
    response = post(echo_client, CHAT, {"input_ids": ids})
    error = error_of(response)
    assert error["param"].startswith("input_ids")
    assert says in error["message"]


def test_input_ids_and_messages_exclude_each_other(echo_client: httpx.Client) -> None:
    refused(echo_client, CHAT, good(CHAT, input_ids=[72]), "input_ids", "together")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x" * CONTEXT}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 5_000_000}]}, "messages"),
        (CHAT, {"messages": HI * (CONTEXT + 1)}, "messages"),
        (CHAT, {"messages": [], "input_ids": [72] * CONTEXT}, "input_ids"),
        (COMPLETIONS, {"prompt": "x" * CONTEXT}, "prompt"),
        (COMPLETIONS, {"prompt": "x" * 5_000_000}, "prompt"),
        (COMPLETIONS, {"prompt": ["short", "x" * CONTEXT]}, "prompt[1]"),
        (COMPLETIONS, {"prompt": [72] * CONTEXT}, "prompt"),
    ],
)
def test_a_prompt_longer_than_the_context_is_a_400_before_any_header(
    echo_client: httpx.Client, path: str, fields: dict[str, Any], param: str, stream: bool
) -> None:
    """Never a stream with an error in it, and never cut in silence; its code tells it from other 400s."""
    error = refused(echo_client, path, {**good(path), **fields, "stream": stream, "max_tokens": 1}, param, str(CONTEXT))
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", GENERATING)
def test_text_that_cannot_fit_is_refused_before_it_is_encoded(
    echo_pool: Pool, echo_client: httpx.Client, path: str
) -> None:
    text = "many words " * 2_000_000
    fields = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    began = cpu_seconds(echo_pool)
    error_of(post(echo_client, path, {**good(path), **fields}))
    assert cpu_seconds(echo_pool) - began < 2


def test_one_token_of_the_context_is_left_for_the_answer(echo_client: httpx.Client) -> None:
    def status(size: int, **fields: Any) -> int:
        return post(echo_client, COMPLETIONS, {"prompt": [72] * size, "max_tokens": 1, **fields}).status_code

    assert status(CONTEXT - 1) == 200
    assert status(CONTEXT) == 400
    assert status(CONTEXT, max_tokens=0, echo=True) == 200
    assert status(CONTEXT + 1, max_tokens=0, echo=True) == 400
    assert status(CONTEXT - 16, max_tokens=16) == 200
    assert status(CONTEXT - 15, max_tokens=16) == 400


@pytest.mark.parametrize(
    ("path", "name"), [(CHAT, "max_tokens"), (CHAT, "max_completion_tokens"), (COMPLETIONS, "max_tokens")]
)
def test_more_tokens_than_there_is_room_for_is_a_400_that_names_the_field_and_what_fits(
    echo_client: httpx.Client, path: str, name: str
) -> None:
    body = {key: value for key, value in GOOD[path].items() if key != "max_tokens"}
    error = refused(echo_client, path, {**body, name: 65_535}, name, f"Send {name} <= {CONTEXT - 2}")
    assert error["code"] == "context_length_exceeded"
    assert post(echo_client, path, {**body, name: CONTEXT - 2}).status_code == 200


def test_max_completion_tokens_wins_over_max_tokens(echo_client: httpx.Client) -> None:
    answer = post(echo_client, CHAT, {"messages": HI, "max_tokens": 65_535, "max_completion_tokens": 1})
    assert answer.json()["usage"]["completion_tokens"] == 1


def test_unset_the_answer_may_take_the_rest_of_the_context_in_chat_and_sixteen_tokens_in_completions(
    echo_client: httpx.Client,
) -> None:
    text = "x" * 60
    chat = post(echo_client, CHAT, {"messages": [{"role": "user", "content": text}]}).json()
    assert (chat["choices"][0]["message"]["content"], chat["choices"][0]["finish_reason"]) == (text, "stop")
    completion = post(echo_client, COMPLETIONS, {"prompt": text}).json()
    assert (completion["choices"][0]["text"], completion["choices"][0]["finish_reason"]) == ("x" * 16, "length")


def test_clamp_max_tokens_cuts_to_the_room(start_pool: StartPool) -> None:
    flags = ("--api-server-count", "1", "--clamp-max-tokens", "--max-model-len", "10", "--chat-template", ECHO_TEMPLATE)
    with start_pool(*flags, engine=["--mode", "echo"]) as pool:
        answer = pool.post(CHAT, {"messages": HI, "max_tokens": 65_535, "ignore_eos": True}).json()
        assert answer["usage"] == {**answer["usage"], "prompt_tokens": 2, "completion_tokens": 8}


def test_a_prompt_is_truncated_where_that_was_asked_for(echo_client: httpx.Client) -> None:
    def text(prompt: str | list[int], **fields: Any) -> str:
        body = {"prompt": prompt, "max_tokens": 3, "truncate_prompt_tokens": 3, **fields}
        return post(echo_client, COMPLETIONS, body).json()["choices"][0]["text"]

    assert text("abcdef") == "def"
    assert text("abcdef", truncation_side="right") == "abc"
    assert text([97, 98, 99, 100]) == "bcd"
    assert text("ab") == "ab"
    assert text("x" * 3_000_000 + "end") == "end"
    assert text("end" + "x" * 3_000_000, truncation_side="right") == "end"
    assert text("abcdef", echo=True, max_tokens=0) == "def"
    assert text("x" * (CONTEXT + 100), truncate_prompt_tokens=-1, max_tokens=1) == "x"


# ---- tokenize and detokenize ---------------------------------------------------------------------------------------


def test_tokenize_takes_every_form_of_prompt(echo_client: httpx.Client) -> None:
    def answer(**fields: Any) -> dict[str, Any]:
        return post(echo_client, TOKENIZE, fields).json()

    assert answer(prompt="Hi") == {"tokens": [72, 105], "count": 2, "max_model_len": CONTEXT}
    assert answer(prompt=["Hi", "a"]) == {"tokens": [[72, 105], [97]], "count": [2, 1], "max_model_len": CONTEXT}
    assert answer(prompt="") == {"tokens": [], "count": 0, "max_model_len": CONTEXT}
    assert answer(prompt=["", "a"])["tokens"] == [[], [97]]
    assert answer(prompt="é", return_token_strs=True)["token_strs"] == ["\ufffd", "\ufffd"]
    assert answer(messages=HI)["tokens"] == [72, 105]
    assert answer(prompt="x" * (CONTEXT + 1))["count"] == CONTEXT + 1


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({}, "prompt", "Exactly one"),
        ({"prompt": "a", "messages": HI}, "prompt", "Exactly one"),
        ({"prompt": None, "messages": None}, "prompt", "Exactly one"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": 5}, "prompt", "Expected"),
        ({"prompt": [72]}, "prompt[0]", "Expected `str`"),
        ({"prompt": ["a", 5]}, "prompt[1]", "Expected `str`"),
        ({"prompt": ["a"] * 2049}, "prompt", "at most 2048"),
        ({"prompt": "a", "add_special_tokens": "no"}, "add_special_tokens", "Expected `bool"),
    ],
)
def test_tokenize_says_what_is_wrong_with_a_prompt(
    echo_client: httpx.Client, fields: dict[str, Any], param: str, says: str
) -> None:
    refused(echo_client, TOKENIZE, fields, param, says)


def test_detokenize_takes_ids_and_lists_of_ids(echo_client: httpx.Client) -> None:
    def text(tokens: Any, **fields: Any) -> Any:
        answer = post(echo_client, DETOKENIZE, {"tokens": tokens, **fields}).json()
        assert answer["text"] == answer["prompt"]
        return answer["text"]

    assert text([72, 105]) == "Hi"
    assert text([[72], [105]]) == ["H", "i"]
    assert text([]) == ""
    assert text([[], [72]]) == ["", "H"]
    assert text([0xF0, 0x9F]) == "\ufffd"
    assert text([72, 258]) == "H"
    assert text([72, 258], skip_special_tokens=False) == "H<|im_end|>"


@pytest.mark.parametrize(
    ("tokens", "param", "says"),
    [
        (None, "tokens", "required"),
        ("Hi", "tokens", "Expected `array"),
        (["Hi"], "tokens", "integers"),
        ([True], "tokens", "integers"),
        ([1.5], "tokens", "integers"),
        ([None], "tokens", "integers"),
        ([72, [105]], "tokens", "integers"),
        ([[72], 105], "tokens[1]", "list of token ids"),
        ([[72], ["a"]], "tokens[1]", "integers"),
        ([VOCABULARY], "tokens", f"ids are 0 to {VOCABULARY - 1}"),
        ([-1], "tokens", "token id -1;"),
        ([[72], [10**30]], "tokens[1]", "token id 1000"),
        ([[72]] * 2049, "tokens", "at most 2048"),
    ],
)
def test_detokenize_says_what_is_wrong_with_the_ids(
    echo_client: httpx.Client, tokens: Any, param: str, says: str
) -> None:
    refused(echo_client, DETOKENIZE, {"tokens": tokens}, param, says)

"""The names of tokens in a completion's logprobs: the tokens' own text, and never the same name twice."""

from apiserver.events import TokenLogprob
from apiserver.protocol import openai


def entry(token_id: int, raw: bytes, logprob: float | None = -1.0, *top: TokenLogprob) -> TokenLogprob:
    return TokenLogprob(token_id, logprob, raw.decode(errors="replace"), raw, top)


def test_a_part_of_a_character_is_named_by_its_bytes() -> None:
    document = openai.completion_logprobs([entry(1, b"\xf0\x9f"), entry(2, b"a")], as_ids=False, with_top=False)
    assert document["tokens"] == ["bytes:\\xf0\\x9f", "a"]


def test_a_literal_replacement_character_is_named_as_it_is() -> None:
    document = openai.completion_logprobs([entry(1, "\ufffd".encode())], as_ids=False, with_top=False)
    assert document["tokens"] == ["\ufffd"]


def test_two_tokens_of_one_text_do_not_hide_each_other() -> None:
    """A byte-fallback vocabulary can write the letter A in two ways."""
    own = entry(5, b"A", -0.5, entry(5, b"A", -0.5), entry(70, b"A", -0.7), entry(71, b"B", -0.9))
    document = openai.completion_logprobs([own], as_ids=False, with_top=True)
    assert document["top_logprobs"] == [{"A": -0.5, "token_id:70": -0.7, "B": -0.9}]


def test_the_sampled_token_is_among_the_alternatives_even_where_it_was_unlikely() -> None:
    own = entry(7, b"x", -9.0, entry(5, b"A", -0.5))
    document = openai.completion_logprobs([own], as_ids=False, with_top=True)
    assert document["top_logprobs"] == [{"A": -0.5, "x": -9.0}]


def test_the_first_token_of_a_prompt_has_no_alternatives() -> None:
    document = openai.completion_logprobs([entry(7, b"x", None)], as_ids=False, with_top=True)
    assert (document["token_logprobs"], document["top_logprobs"]) == ([None], [None])

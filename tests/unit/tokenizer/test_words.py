"""The memory of words: what it may be used for, what it asks the reference, and what it keeps."""

import json
from typing import Any

import pytest

from apiserver.tokenizer.hf import HfTokenizer
from apiserver.tokenizer.words import WordEncoder, is_word_by_word
from tests.real_tokenizers import tokenizer_json


class Counting(HfTokenizer):
    """Notes what it is asked to encode."""

    def __init__(self, document: str) -> None:
        super().__init__(document)
        self.asked: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.asked.append(text)
        return super().encode(text, add_special_tokens=add_special_tokens)


@pytest.fixture
def reference() -> Counting:
    return Counting(tokenizer_json("minilm"))


@pytest.fixture
def encoder(reference: Counting) -> WordEncoder:
    made = WordEncoder(tokenizer_json("minilm"), reference)
    reference.asked.clear()
    return made


def test_words_that_were_seen_are_not_encoded_again(encoder: WordEncoder, reference: Counting) -> None:
    first = encoder.encode("tell me more", add_special_tokens=True)
    assert reference.asked == ["tell", "me", "more", "tell me more"]
    reference.asked.clear()
    assert encoder.encode("tell me more", add_special_tokens=True) == first
    assert encoder.encode("me more  tell", add_special_tokens=False) == [first[2], first[3], first[1]]
    assert reference.asked == []


def test_of_a_text_full_of_new_words_only_a_few_are_learnt(encoder: WordEncoder, reference: Counting) -> None:
    encoder.encode(" ".join(f"word{number}" for number in range(200)), add_special_tokens=True)
    assert len(reference.asked) <= 5


def test_long_texts_and_long_words_leave_nothing_behind(encoder: WordEncoder, reference: Counting) -> None:
    encoder.encode("word " * 1000, add_special_tokens=True)
    encoder.encode("w" * 100, add_special_tokens=True)
    reference.asked.clear()
    encoder.encode("w" * 100, add_special_tokens=True)
    assert reference.asked == ["w" * 100]


def test_the_memory_is_bounded(encoder: WordEncoder, reference: Counting) -> None:
    for number in range(9000):
        encoder.encode(f"w{number}", add_special_tokens=True)
    reference.asked.clear()
    for number in range(9000):
        encoder.encode(f"w{number}", add_special_tokens=True)
    assert len(reference.asked) > 800  # a part was forgotten


def test_what_is_returned_is_the_callers_own(encoder: WordEncoder) -> None:
    encoder.encode("one two", add_special_tokens=False).clear()
    encoder.encode("one", add_special_tokens=False).clear()
    assert encoder.encode("one two", add_special_tokens=False) == [2028, 2048]


@pytest.mark.parametrize(
    ("part", "component"),
    [
        ("normalizer", None),
        ("pre_tokenizer", {"type": "WhitespaceSplit"}),
        ("post_processor", None),
        ("added_tokens", [{"content": "two words", "id": 30522}]),
    ],
)
def test_any_other_tokenizer_is_refused(part: str, component: Any) -> None:
    document = json.loads(tokenizer_json("minilm")) | {part: component}
    assert not is_word_by_word(json.dumps(document))
    with pytest.raises(ValueError, match="BERT"):
        WordEncoder(json.dumps(document), HfTokenizer(tokenizer_json("minilm")))

"""Text that cannot fit is refused for little; text that fits is never refused for its length alone."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

import apiserver
from apiserver.errors import ContextLengthExceeded
from apiserver.pipeline.preprocess import Preprocessor, Room
from apiserver.requests import Text
from apiserver.timings import Timings
from apiserver.tokenizer.byte import byte_tokenizer_json
from apiserver.tokenizer.hf import HfTokenizer
from tests.unit.protocol.cards import make_card

MINILM = (Path(apiserver.__path__[0]) / "data" / "minilm" / "tokenizer.json").read_text(encoding="utf-8")
ROOM = Room(512, reserved=0)


class Counting(HfTokenizer):
    """Knows how much text it was given."""

    def __init__(self, tokenizer_json: str) -> None:
        super().__init__(tokenizer_json)
        self.characters = 0

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        self.characters += len(text)
        return super().encode(text, add_special_tokens=add_special_tokens)


def prepare(tokenizer: HfTokenizer, text: str) -> list[int]:
    card = make_card(max_model_len=ROOM.max_model_len, vocab_size=tokenizer.vocab_size)
    preprocessor = Preprocessor(tokenizer, tokenizer, None, {})
    return preprocessor.prepare(Text(text, "input"), card, ROOM, None, Timings()).token_ids


@pytest.mark.parametrize(
    "text",
    [
        " " * 100_000 + "hello" + "\n" * 100_000,
        "hello" + "\u0301" * 100_000,
        "hello" + "\x00" * 100_000,
        "https" * 20_000,
        "hello " + "\u0915\u093f" * 50_000 + " world",
    ],
)
def test_a_long_text_of_few_tokens_is_served(text: str) -> None:
    """WordPiece drops white space, accents and controls, and a word of any length is one [UNK]."""
    tokenizer = HfTokenizer(MINILM)
    assert not tokenizer.keeps_text
    token_ids = prepare(tokenizer, text)
    assert len(token_ids) <= 5
    assert token_ids == tokenizer.encode(text, add_special_tokens=True)


@pytest.mark.parametrize("text", ["one two, three! " * 100_000, " " * 20_000 + "one two, three! " * 100_000])
def test_of_a_text_that_cannot_fit_a_part_is_enough(text: str) -> None:
    tokenizer = Counting(MINILM)
    with pytest.raises(ContextLengthExceeded) as caught:
        prepare(tokenizer, text)
    assert caught.value.param == "input"
    assert tokenizer.characters < len(text) / 10


def test_where_every_byte_is_in_a_token_the_length_is_enough() -> None:
    tokenizer = Counting(byte_tokenizer_json())
    assert tokenizer.keeps_text
    with pytest.raises(ContextLengthExceeded):
        prepare(tokenizer, "x" * 1_000_000)
    assert tokenizer.characters == 0


def bpe(**changes: Any) -> HfTokenizer:
    """The byte tokenizer, changed."""
    backend = Tokenizer.from_str(byte_tokenizer_json())
    for name, value in changes.items():
        setattr(backend, name, value)
    return HfTokenizer(backend.to_str())


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": normalizers.Strip()},
        {"normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.StripAccents()])},
        {"normalizer": normalizers.Replace(Regex(r"\s+"), " ")},
        {
            "pre_tokenizer": pre_tokenizers.Sequence(
                [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        },
        {
            "pre_tokenizer": pre_tokenizers.Sequence(
                [pre_tokenizers.Split(Regex(r"\s"), "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        },
        {"model": models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")},
        {"pre_tokenizer": None, "model": models.BPE({"a": 0, "?": 1}, [], unk_token="?", fuse_unk=True)},
    ],
)
def test_a_tokenizer_that_may_drop_text_says_so(changes: dict[str, Any]) -> None:
    assert not bpe(**changes).keeps_text
    assert bpe(normalizer=normalizers.NFC()).keeps_text


def test_a_token_that_takes_the_white_space_beside_it_drops_text() -> None:
    backend = Tokenizer.from_str(byte_tokenizer_json())
    backend.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    tokenizer = HfTokenizer(backend.to_str())
    assert not tokenizer.keeps_text
    assert len(prepare(tokenizer, " " * 100_000 + "<mask>")) == 1

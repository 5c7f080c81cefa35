"""Every backend gives the ids of the reference, for real tokenizers of each family; and who is chosen, and why."""

import functools
import json
import random
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from apiserver.tokenizer import Encoder
from apiserver.tokenizer.backends import choose
from apiserver.tokenizer.byte import byte_tokenizer_json
from apiserver.tokenizer.fast import FastEncoder
from apiserver.tokenizer.hf import HfTokenizer
from apiserver.tokenizer.probe import disagreement
from apiserver.tokenizer.source import TokenizerError
from apiserver.tokenizer.words import WordEncoder, is_word_by_word
from engine_bridge.wire import unpack_ids
from tests.real_tokenizers import FAST, NAMES, mistral_pieces, tokenizer_directory, tokenizer_json
from tests.unit.tokenizer import reference
from tests.varied_texts import varied_texts

pytestmark = pytest.mark.timeout(300)  # the first one of all fetches and converts

BACKENDS = [
    *((name, "hf") for name in NAMES),
    *((name, "fastokens") for name in NAMES if name in FAST),
    ("minilm", "words"),
]


@dataclass(frozen=True)
class Real:
    """One tokenizer: as `tokenizers` has it (`encode`, the slow call of the reference), and ours."""

    reference: Tokenizer
    hf: HfTokenizer
    fast: FastEncoder | None
    words: WordEncoder | None
    added: tuple[str, ...]

    def ours(self, backend: str) -> Encoder:
        if backend == "hf":
            return self.hf
        if backend == "words":
            assert self.words is not None
            return self.words
        assert self.fast is not None
        return self.fast

    def texts(self) -> list[str]:
        """The varied ones, and some around each of this model's own control tokens."""
        rng = random.Random(3)
        chosen = self.added if len(self.added) <= 100 else rng.sample(self.added, 100)
        around = [
            f"{before}{token}{after}" for token in chosen for before, after in (("", ""), ("a ", " b"), ("x", "y"))
        ]
        return [*varied_texts(), *around, "".join(chosen), "\n".join(chosen)]


@functools.cache
def real(name: str) -> Real:
    document = tokenizer_json(name)
    backend = Tokenizer.from_str(document)
    backend.no_padding()
    backend.no_truncation()
    added = tuple(token.content for token in backend.get_added_tokens_decoder().values())
    hf = HfTokenizer(document)
    fast = FastEncoder(document) if name in FAST else None
    words = WordEncoder(document, hf) if is_word_by_word(document) else None
    return Real(backend, hf, fast, words, added)


# ---- text → ids ----


def test_the_texts_are_many_and_not_only_english() -> None:
    texts = varied_texts()
    assert len(texts) >= 2000
    assert sum(not text.isascii() for text in texts) >= 1000


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
def test_ids_are_those_of_tokenizers_own_encode(name: str, backend: str) -> None:
    model = real(name)
    encoder = model.ours(backend)
    for text in model.texts():
        for special in (False, True):
            expected = model.reference.encode(text, add_special_tokens=special).ids
            for _ in range(2):  # what was learnt from a text gives its ids as well
                assert encoder.encode(text, add_special_tokens=special) == expected, ascii(text)
            assert unpack_ids(encoder.encode_packed(text, add_special_tokens=special)) == expected, ascii(text)


REFERENCES: dict[str, Callable[[], reference.Encode]] = {
    "qwen3": lambda: reference.byte_level(tokenizer_json("qwen3"), by_rank=True),
    "deepseek": lambda: reference.byte_level(tokenizer_json("deepseek")),
    "smollm2": lambda: reference.byte_level(tokenizer_json("smollm2")),
    "mistral": lambda: reference.sentencepiece(mistral_pieces()),
    "minilm": lambda: reference.word_piece(tokenizer_json("minilm")),
}


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
def test_ids_are_those_of_the_models_own_algorithm(name: str, backend: str) -> None:
    """In plain Python, out of the data that the model's makers publish: ranks, scores, a vocabulary."""
    expected, encode = REFERENCES[name](), real(name).ours(backend).encode
    for text in varied_texts():
        if is_assigned(text):
            assert encode(text, add_special_tokens=False) == expected(text), ascii(text)


def is_assigned(text: str) -> bool:
    """Of characters that nobody has assigned, each library knows another number."""
    return all(unicodedata.category(character) != "Cn" for character in text)


@st.composite
def texts_of(draw: st.DrawFn, added: tuple[str, ...]) -> str:
    pieces = st.one_of(
        st.text(max_size=30), st.sampled_from(added), st.sampled_from((" ", "  ", "\n", "'s", "1", "e\u0301"))
    )
    return "".join(draw(st.lists(pieces, max_size=8)))


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
def test_ids_are_equal_for_whatever_comes(name: str, backend: str) -> None:
    model = real(name)
    encoder = model.ours(backend)

    @settings(max_examples=300, deadline=None)
    @given(text=texts_of(model.added), special=st.booleans())
    def check(text: str, special: bool) -> None:
        expected = model.reference.encode(text, add_special_tokens=special).ids
        for _ in range(3):
            assert encoder.encode(text, add_special_tokens=special) == expected
            assert unpack_ids(encoder.encode_packed(text, add_special_tokens=special)) == expected

    check()


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
@pytest.mark.parametrize(
    "text", ["a" * 100_000, " " * 100_000, "\r\n" * 40_000, "中" * 60_000, "0" * 60_000, "e\u0301" * 40_000]
)
def test_one_kind_of_character_for_ever_is_no_other_matter(name: str, backend: str, text: str) -> None:
    model = real(name)
    expected = model.reference.encode(text).ids
    assert model.ours(backend).encode(text, add_special_tokens=True) == expected
    assert unpack_ids(model.ours(backend).encode_packed(text, add_special_tokens=True)) == expected


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_truncated_ids_are_those_of_tokenizers_own_truncation(
    name: str, backend: str, side: Literal["left", "right"]
) -> None:
    model = real(name)
    truncating = Tokenizer.from_str(tokenizer_json(name))
    truncating.no_padding()
    encoder = model.ours(backend)
    added = len(model.reference.encode("").ids)
    for most in (added + 1, 7, 100):
        truncating.enable_truncation(most, direction=side)
        for text in varied_texts()[::13]:
            for special in (False, True):
                expected = truncating.encode(text, add_special_tokens=special).ids
                cut = encoder.encode_truncated(text, add_special_tokens=special, most=most, side=side)
                assert cut == expected, ascii(text)


@pytest.mark.parametrize(("name", "backend"), BACKENDS)
def test_an_encoder_keeps_no_state_between_calls(name: str, backend: str) -> None:
    """Whatever was asked before, padding, truncation and counts in the file included (MiniLM's has both)."""
    encoder = real(name).ours(backend)
    text = "one two three " * 200
    first = encoder.encode(text, add_special_tokens=True)
    encoder.encode_truncated(text, add_special_tokens=True, most=5, side="left")
    assert encoder.encode(text, add_special_tokens=True) == first
    assert len(first) > 500
    assert encoder.encode("one", add_special_tokens=False) == encoder.encode("one", add_special_tokens=False)


# ---- ids → text ----


@pytest.mark.parametrize("name", NAMES)
def test_text_is_that_of_tokenizers_own_decode(name: str) -> None:
    model = real(name)
    for text in model.texts():
        token_ids = model.hf.encode(text, add_special_tokens=True)
        for skip in (False, True):
            expected = model.reference.decode(token_ids, skip_special_tokens=skip)
            assert model.hf.decode(token_ids, skip_special_tokens=skip) == expected, ascii(text)


@pytest.mark.parametrize("name", NAMES)
def test_any_ids_decode_as_tokenizers_decodes_them(name: str) -> None:
    model = real(name)
    ids = st.integers(0, model.hf.vocab_size + 10)

    @settings(max_examples=200, deadline=None)
    @given(
        token_ids=st.one_of(st.lists(ids, max_size=30), st.lists(ids, min_size=512, max_size=600)), skip=st.booleans()
    )
    def check(token_ids: list[int], skip: bool) -> None:
        expected = model.reference.decode(token_ids, skip_special_tokens=skip)
        assert model.hf.decode(token_ids, skip_special_tokens=skip) == expected

    check()


@pytest.mark.parametrize("name", ["qwen3", "deepseek", "mistral"])
def test_decoding_gives_the_text_back(name: str) -> None:
    model = real(name)
    for text in varied_texts():
        expected = unicodedata.normalize("NFC", text) if name == "qwen3" else text
        token_ids = model.hf.encode(text, add_special_tokens=True)
        assert model.hf.decode(token_ids, skip_special_tokens=True) == expected, ascii(text)


@pytest.mark.parametrize("name", NAMES)
def test_no_text_has_fewer_tokens_than_its_length_allows(name: str) -> None:
    """What the cheap refusal relies on."""
    hf = real(name).hf
    assert hf.keeps_text == (name not in ("minilm", "smollm2"))  # SmolLM2 leaves out bytes that it does not know
    if hf.keeps_text:
        for text in real(name).texts():
            assert len(hf.encode(text, add_special_tokens=False)) * hf.longest_token_bytes >= len(text)


# ---- which backend ----

KNOWN_WORD = "Government"  # a token of SmolLM2; none of the probe's own strings holds it


def with_added_word() -> str:
    """An added token whose text is a token already: `tokenizers` goes on to use the old id, fastokens the new one."""
    document = json.loads(tokenizer_json("smollm2"))
    assert KNOWN_WORD in document["model"]["vocab"]
    token = document["added_tokens"][0] | {"id": len(document["model"]["vocab"]), "content": KNOWN_WORD}
    document["added_tokens"].append(token | {"special": False, "normalized": True})
    return json.dumps(document)


def changed(**fields: Any) -> str:
    backend = Tokenizer.from_str(tokenizer_json("smollm2"))
    for name, value in fields.items():
        setattr(backend, name, value)
    return backend.to_str()


def test_the_probe_agrees_where_the_ids_are_equal() -> None:
    assert disagreement(tokenizer_json("smollm2")) is None
    assert disagreement(byte_tokenizer_json()) is None


def test_the_probe_finds_words_that_one_of_them_drops() -> None:
    document = changed(pre_tokenizer=None)
    reference, fast = HfTokenizer(document), FastEncoder(document)
    assert reference.encode("a b", add_special_tokens=False) != fast.encode("a b", add_special_tokens=False)
    found = disagreement(document)
    assert found is not None
    assert "the ids differ for" in found


def test_the_probe_tries_every_added_token() -> None:
    document = with_added_word()
    text = f"a {KNOWN_WORD} b"
    reference, fast = HfTokenizer(document), FastEncoder(document)
    assert reference.encode(text, add_special_tokens=False) != fast.encode(text, add_special_tokens=False)
    found = disagreement(document)
    assert found is not None
    assert KNOWN_WORD in found


def test_the_probe_says_what_fastokens_cannot_do() -> None:
    found = disagreement(tokenizer_json("minilm"))
    assert found is not None
    assert "fastokens cannot load it" in found
    assert "BertNormalizer" in found


def write(directory: Path, document: str) -> Path:
    file = directory / "tokenizer.json"
    file.write_text(document, encoding="utf-8")
    return file


@pytest.mark.parametrize("name", NAMES)
def test_fastokens_is_chosen_where_it_agrees_and_what_knows_words_for_bert(name: str, tmp_path: Path) -> None:
    choice = choose(tokenizer_directory(name) / "tokenizer.json", "auto", tmp_path)
    assert choice.encoder_name == ("words" if name == "minilm" else "fastokens" if name in FAST else "hf")
    assert ("agree" in choice.reason) == (name in FAST)
    tokenizer, encoder = choice.make()
    assert encoder.name == choice.encoder_name
    assert encoder.encode("Hi", add_special_tokens=False) == tokenizer.encode("Hi", add_special_tokens=False)


def test_two_makings_share_nothing(tmp_path: Path) -> None:
    choice = choose(write(tmp_path, byte_tokenizer_json()), "auto", tmp_path)
    made = [*choice.make(), *choice.make()]
    assert len({id(part) for part in made}) == 4


def test_asking_for_what_cannot_be_used_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"--tokenizer-backend fastokens: .*BertNormalizer"):
        choose(tokenizer_directory("minilm") / "tokenizer.json", "fastokens", tmp_path)
    with pytest.raises(TokenizerError, match=r"--tokenizer-backend fastokens: the ids differ"):
        choose(write(tmp_path, with_added_word()), "fastokens", tmp_path)


def test_where_the_ids_differ_auto_falls_back_and_says_why(tmp_path: Path) -> None:
    choice = choose(write(tmp_path, with_added_word()), "auto", tmp_path)
    assert choice.encoder_name == "hf"
    assert KNOWN_WORD in choice.reason


@pytest.fixture
def no_child(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a child was started")

    return lambda: monkeypatch.setattr(subprocess, "run", refuse)


def test_who_asks_for_tokenizers_waits_for_no_comparison(tmp_path: Path, no_child: Callable[[], None]) -> None:
    no_child()
    choice = choose(tokenizer_directory("qwen3") / "tokenizer.json", "hf", tmp_path)
    assert (choice.encoder_name, choice.reason) == ("hf", "asked for")


@pytest.mark.parametrize("document", [byte_tokenizer_json(), tokenizer_json("minilm")])
def test_the_comparison_is_made_once_for_a_text(document: str, tmp_path: Path, no_child: Callable[[], None]) -> None:
    first = choose(write(tmp_path, document), "auto", tmp_path / "cache")
    no_child()
    assert choose(write(tmp_path, document), "auto", tmp_path / "cache") == first
    with pytest.raises(AssertionError, match="a child was started"):
        choose(write(tmp_path, document + " "), "auto", tmp_path / "cache")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"fastokens": 1}'])
def test_a_broken_memory_is_no_verdict(content: str, tmp_path: Path) -> None:
    (tmp_path / "fastokens-verdicts.json").write_text(content)
    assert choose(write(tmp_path, byte_tokenizer_json()), "auto", tmp_path).encoder_name == "fastokens"


def test_a_memory_that_cannot_be_written_does_not_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert choose(write(tmp_path, byte_tokenizer_json()), "auto", tmp_path / "file").encoder_name == "fastokens"


def test_a_comparison_that_could_not_be_made_is_made_another_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, byte_tokenizer_json())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")
        choice = choose(file, "auto", tmp_path)
        assert choice.encoder_name == "hf"
        assert "ended with status 1" in choice.reason
        with pytest.raises(TokenizerError, match="ended with status 1"):
            choose(file, "fastokens", tmp_path)
    assert choose(file, "auto", tmp_path).encoder_name == "fastokens"

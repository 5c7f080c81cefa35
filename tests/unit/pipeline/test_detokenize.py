"""A stream of ids becomes the text that the tokenizer makes of them all, and never a half character on the way."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiserver.pipeline.detokenize import make_detokenizer
from apiserver.tokenizer import Tokenizer
from apiserver.tokenizer.hf import HfTokenizer
from tests.unit.pipeline.specimens import ADDED, SPECIAL, SPECIMENS, Specimen

HARD_TEXTS = [
    "Hello, world!",
    "Grüße, 世界 🎉",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪",
    "literal \ufffd and \ufffd\ufffd, at the end \ufffd",
    " a  b   c ",
    "\x00\n\t\u2028\u200d",
    "日本語のテキスト",
    "e\u0301 \U0010ffff \U00010000",
]
# Bytes that stand on each side of every border in the table of well-formed UTF-8.
BORDER_BYTES = bytes.fromhex("41 80 8f 90 9f a0 bf c1 c2 e0 ed f0 f4 ff")
HELD_AT_MOST = 32  # ids that one step may decode, whatever came before

every_specimen = pytest.mark.parametrize("specimen", SPECIMENS.values(), ids=SPECIMENS)
byte_level_specimens = pytest.mark.parametrize("name", ["byte level", "merged byte level", "odd byte level"])
byte_fallback_specimens = pytest.mark.parametrize(
    "name", ["byte fallback", "byte fallback, nothing stripped", "odd byte fallback"]
)
either_way = pytest.mark.parametrize("skip", [True, False], ids=["skipped", "told"])


def stream(tokenizer: Tokenizer, token_ids: list[int], *, skip: bool = True) -> list[str]:
    """The deltas: one for each id, and the flush."""
    detokenizer = make_detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.feed(token_id) for token_id in token_ids), detokenizer.flush()]


def outputs(specimen: Specimen) -> st.SearchStrategy[list[int]]:
    """Lists of ids that a model may make: any at all, ids that no token has, and often the difficult ones."""
    vocabulary = specimen.backend.get_vocab()
    difficult = specimen.ids(SPECIAL, *ADDED)
    difficult += [
        token_id for token, token_id in vocabulary.items() if token.startswith(("<0x", "▁", "##")) or not token
    ]
    difficult += [token_id for token, token_id in vocabulary.items() if len(token) == 1 and not token.isascii()]
    pieces = st.one_of(
        st.lists(st.integers(0, specimen.ours.vocab_size + 6), max_size=60),
        st.lists(st.sampled_from(difficult), max_size=60),
        st.text(max_size=12).map(lambda text: specimen.backend.encode(text, add_special_tokens=False).ids),
    )
    return st.lists(pieces, max_size=4).map(lambda lists: list(itertools.chain.from_iterable(lists)))


@every_specimen
@either_way
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_joined_deltas_are_the_tokenizers_own_decode_of_all_ids(
    specimen: Specimen, skip: bool, data: st.DataObject
) -> None:
    token_ids = data.draw(outputs(specimen))
    # Equal when joined also says that each U+FFFD told is one of the final text, at its place: none came too early.
    assert "".join(stream(specimen.ours, token_ids, skip=skip)) == specimen.backend.decode(
        token_ids, skip_special_tokens=skip
    )


@every_specimen
@either_way
@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_what_is_decided_is_told_at_once(specimen: Specimen, skip: bool, data: st.DataObject) -> None:
    token_ids = data.draw(outputs(specimen))
    told = ""
    for count, delta in enumerate(stream(specimen.ours, token_ids, skip=skip)[:-1], 1):
        told += delta
        so_far = token_ids[:count]
        while so_far and _is_undecided(specimen, so_far[-1], skip):
            so_far = so_far[:-1]
        whole = specimen.backend.decode(so_far, skip_special_tokens=skip)
        assert whole.startswith(told)
        # Of two bytes that begin a surrogate CPython waits for the third, though UTF-8 has no surrogates.
        assert whole.removeprefix(told) in ("", "\ufffd", "\ufffd\ufffd")


def _is_undecided(specimen: Specimen, token_id: int, skip: bool) -> bool:
    """Whether nothing can be told of this id yet: a byte of a run, or nothing at all."""
    ours = specimen.ours
    skipped = (skip and token_id in ours.special_ids) or not ours.has_token(token_id)
    return skipped or ours.fallback_byte(token_id) is not None


@byte_level_specimens
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_a_text_streams_as_it_is_however_the_tokens_cut_its_characters(name: str, text: str) -> None:
    specimen = SPECIMENS[name]
    token_ids = specimen.backend.encode(text, add_special_tokens=False).ids
    expected = text.replace("\t", "    ") if name == "odd byte level" else text
    assert "".join(stream(specimen.ours, token_ids)) == expected


@byte_fallback_specimens
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_a_text_of_byte_tokens_streams_as_it_is(name: str, text: str) -> None:
    specimen = SPECIMENS[name]
    token_ids = specimen.ids(*(f"<0x{byte:02X}>" for byte in text.encode()))
    deltas = stream(specimen.ours, token_ids)
    assert "".join(deltas) == (text.removeprefix(" ") if name == "byte fallback" else text)


@byte_level_specimens
def test_every_kind_of_broken_utf8_decodes_as_the_tokenizer_does(name: str) -> None:
    specimen = SPECIMENS[name]
    ids = _ids_of_bytes(specimen, bytes(range(256)))
    for sequence in itertools.product(BORDER_BYTES, repeat=3):
        token_ids = [ids[byte] for byte in sequence]
        assert "".join(stream(specimen.ours, token_ids)) == bytes(sequence).decode(errors="replace")
        assert specimen.backend.decode(token_ids) == bytes(sequence).decode(errors="replace")


def test_the_bytes_of_an_emoji_come_as_one_delta() -> None:  # tenstorrent/tt-inference-server#2594
    assert stream(SPECIMENS["byte level"].ours, list("a🎉b".encode())) == ["a", "", "", "", "🎉", "b", ""]


def test_words_keep_the_spaces_between_them() -> None:  # huggingface/transformers#22710
    for name in ("byte fallback", "metaspace"):
        specimen = SPECIMENS[name]
        assert stream(specimen.ours, specimen.ids("▁the", "▁dog", "▁the")) == ["the", " dog", " the", ""]


def test_a_first_word_mark_is_no_space_where_the_decoder_says_so() -> None:  # vllm-project/vllm#29953
    words = ("▁the", "▁dog")
    assert stream(SPECIMENS["byte fallback"].ours, SPECIMENS["byte fallback"].ids(*words)) == ["the", " dog", ""]
    kept = SPECIMENS["byte fallback, nothing stripped"]
    assert stream(kept.ours, kept.ids(*words)) == [" the", " dog", ""]


@every_specimen
def test_special_tokens_are_absent_or_present_as_asked(specimen: Specimen) -> None:  # vllm-project/vllm#1044
    token_ids = specimen.ids("a", SPECIAL, "b", SPECIAL)
    assert SPECIAL not in "".join(stream(specimen.ours, token_ids, skip=True))
    assert "".join(stream(specimen.ours, token_ids, skip=False)).count(SPECIAL) == 2


@pytest.mark.parametrize("name", ["byte level", "merged byte level", "byte fallback", "metaspace"])
def test_added_tokens_come_back_as_written_without_extra_spaces(name: str) -> None:  # vllm-project/vllm#4577
    specimen = SPECIMENS[name]
    token_ids = specimen.ids("a", "two words", "b", SPECIAL, SPECIAL, "two words")
    assert "".join(stream(specimen.ours, token_ids, skip=False)) == f"atwo wordsb{SPECIAL}{SPECIAL}two words"


@byte_fallback_specimens
def test_a_run_of_bytes_goes_on_across_ids_that_are_no_text(name: str) -> None:
    specimen = SPECIMENS[name]
    first, second, third = specimen.ids("<0xE4>", "<0xBD>", "<0xA0>")
    nothing = [*specimen.ids(SPECIAL), specimen.ours.vocab_size + 3]
    token_ids = [first, nothing[0], second, nothing[1], third, *specimen.ids("a")]
    assert "".join(stream(specimen.ours, token_ids)) == "你a"
    assert stream(specimen.ours, token_ids)[:5] == [""] * 5


@byte_fallback_specimens
def test_a_run_with_one_wrong_byte_is_wrong_as_a_whole(name: str) -> None:
    specimen = SPECIMENS[name]
    token_ids = specimen.ids("a", "<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "b")
    assert "".join(stream(specimen.ours, token_ids)) == "a\ufffd\ufffd\ufffd\ufffdb"


@pytest.mark.parametrize("token", ["�", "�▁", "▁�"])
def test_a_literal_replacement_character_is_text(token: str) -> None:
    specimen = SPECIMENS["metaspace"]
    mark = token.replace("▁", " ")
    assert "".join(stream(specimen.ours, specimen.ids("a", token))) == f"a{mark}"
    assert "".join(stream(specimen.ours, specimen.ids("a", token, token, "b"))) == f"a{mark}{mark}b"


class _Counting(HfTokenizer):
    """Counts the ids that it was asked to decode."""

    decoded = 0
    most = 0

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        self.decoded += len(token_ids)
        self.most = max(self.most, len(token_ids))
        return super().decode(token_ids, skip_special_tokens=skip_special_tokens)


@every_specimen
@pytest.mark.parametrize("wrong", [b"\xff", b"\x80", b"\xf0\x9f\x98", b"\xe4\xbd"], ids=bytes.hex)
def test_ten_thousand_broken_bytes_take_work_in_proportion(specimen: Specimen, wrong: bytes) -> None:
    token_ids = (_ids_of_bytes(specimen, wrong) * 10_000)[:10_000]
    counting = _Counting(specimen.backend.to_str())
    deltas = stream(counting, token_ids)
    assert "".join(deltas) == specimen.backend.decode(token_ids)
    if specimen.ours.fallback_byte(token_ids[0]) is not None:
        assert counting.decoded <= len(token_ids)  # once, when the run has ended
        assert max(map(len, deltas[:-1])) == 0
    else:
        assert counting.most <= HELD_AT_MOST
        assert max(map(len, deltas)) <= 2  # nothing piles up


def _ids_of_bytes(specimen: Specimen, raw: bytes) -> list[int]:
    """These bytes as ids, one a byte; U+FFFD itself where a vocabulary has no bytes."""
    ours = specimen.ours
    single = {ours.token_bytes(token_id): token_id for token_id in reversed(range(ours.vocab_size))}
    if bytes((0xFF,)) not in single:
        return specimen.ids("�") if "�" in specimen.backend.get_vocab() else specimen.ids("é")
    return [single[bytes((byte,))] for byte in raw]

"""The stop checker against a definition that looks at the whole text at once."""

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiserver.pipeline.stop import StopChecker

ALPHABET = "ab>\n "  # few letters, so that stop strings overlap each other and themselves
texts = st.text(alphabet=ALPHABET, max_size=24)
stop_lists = st.lists(st.text(alphabet=ALPHABET, min_size=1, max_size=5), min_size=1, max_size=4).map(tuple)


def end_of(text: str, stops: tuple[str, ...], protected: int = 0) -> tuple[str, str | None]:
    """The definition: the stop string that completes first, but behind `protected` characters, ends the text before
    it; of two that complete together, the longer."""
    for end in range(protected + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def held_back(text: str, stops: tuple[str, ...]) -> int:
    """The definition: as many characters at the end as a stop string may begin with and has not ended with."""
    beginnings = {stop[:size] for stop in stops for size in range(1, len(stop))}
    return max((size for size in range(1, len(text) + 1) if text[-size:] in beginnings), default=0)


def cut(text: str, borders: list[int]) -> list[str]:
    places = [0, *sorted(border % (len(text) + 1) for border in borders), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


def all_cuts(text: str) -> Iterator[list[str]]:
    for borders in itertools.product([False, True], repeat=len(text) - 1):
        places = [0, *(place for place, border in enumerate(borders, 1) if border), len(text)]
        yield [text[start:end] for start, end in itertools.pairwise(places)]


def run(stops: tuple[str, ...], chunks: list[str], protected_chunks: int = 0) -> tuple[list[str], str | None]:
    """What is told, chunk by chunk, and the match. Stops feeding at a match, as the decoder does."""
    checker = StopChecker(stops)
    told: list[str] = []
    for number, chunk in enumerate(chunks):
        told.append(checker.feed(chunk, may_end=number >= protected_chunks))
        if checker.matched is not None:
            return told, checker.matched
    told.append(checker.flush())
    return told, None


@settings(deadline=None, max_examples=500)
@given(text=texts, stops=stop_lists, borders=st.lists(st.integers(0, 24), max_size=12))
def test_the_answer_is_a_property_of_the_text_however_it_is_cut(
    text: str, stops: tuple[str, ...], borders: list[int]
) -> None:
    told, matched = run(stops, cut(text, borders))
    assert ("".join(told), matched) == end_of(text, stops)


@settings(deadline=None, max_examples=500)
@given(text=texts, stops=stop_lists, borders=st.lists(st.integers(0, 24), max_size=12))
def test_no_part_of_a_stop_string_is_told_and_nothing_else_is_held_back(
    text: str, stops: tuple[str, ...], borders: list[int]
) -> None:
    checker = StopChecker(stops)
    fed = told = ""
    for chunk in cut(text, borders):
        fed += chunk
        told += checker.feed(chunk)
        if checker.matched is not None:
            break
        assert told == fed[: len(fed) - held_back(fed, stops)]
    assert end_of(text, stops)[0].startswith(told)


@settings(deadline=None, max_examples=500)
@given(text=texts, stops=stop_lists, borders=st.lists(st.integers(0, 24), max_size=12), first=st.integers(0, 13))
def test_a_stop_string_that_completes_too_early_is_text_and_one_that_has_begun_may_still_end(
    text: str, stops: tuple[str, ...], borders: list[int], first: int
) -> None:
    chunks = cut(text, borders)
    told, matched = run(stops, chunks, protected_chunks=first)
    protected = len("".join(chunks[:first]))
    assert ("".join(told), matched) == end_of(text, stops, protected)


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        ((">>> UPD", ">>> UPD\n"), "code\n>>> UPD\nmore", ("code\n", ">>> UPD")),  # jundot/omlx#2386
        ((">>> UPD\n", ">>> UPD"), "code\n>>> UPD\nmore", ("code\n", ">>> UPD")),
        (("DE",), "ABCDEFG", ("ABC", "DE")),  # vllm-project/vllm#3572
        (("b", "ab"), "xab", ("x", "ab")),  # together: the longer
        (("bc", "abcd"), "xabcd", ("xa", "bc")),  # the one that completes first, though it begins later
        (("aab",), "aaab", ("a", "aab")),
        (("abab",), "abaabab", ("aba", "abab")),
        (("ab",), "a", ("a", None)),
        (("世界", "界"), "你世界", ("你", "世界")),
        (("🎉",), "a🎉🎉", ("a", "🎉")),
    ],
)
def test_every_cut_of_a_hard_text_gives_the_same(
    stops: tuple[str, ...], text: str, expected: tuple[str, str | None]
) -> None:
    assert end_of(text, stops) == expected
    for chunks in all_cuts(text) if len(text) < 11 else [[text], list(text), [text[:7], text[7:]]]:
        told, matched = run(stops, chunks)
        assert ("".join(told), matched) == expected


def test_text_that_begins_no_stop_string_is_told_at_once() -> None:
    checker = StopChecker(("STOP",))
    told = [checker.feed(chunk) for chunk in ("Hello", " S", "TO", "NE", "ST", "O")]
    assert told == ["Hello", " ", "", "STONE", "", ""]
    assert checker.flush() == "STO"


def test_what_is_held_back_is_bounded_by_the_longest_stop_string() -> None:
    stops = tuple("a" * size + "b" for size in range(960, 1024))
    checker = StopChecker(stops)
    told = sum(len(checker.feed("a")) for _ in range(3000))
    assert told == 3000 - 1023
    assert len(checker.feed("b")) == 1023 - 1023
    assert checker.matched == stops[-1]


def test_a_stop_string_that_may_not_end_the_text_is_told_at_once() -> None:
    checker = StopChecker(("ab", "xyz."))
    assert [checker.feed(chunk, may_end=False) for chunk in ("a", "b", "x")] == ["", "ab", ""]

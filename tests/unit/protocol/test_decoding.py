"""Bytes become a struct, or an InvalidRequest that says where; nothing else is ever raised."""

import gc
import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apiserver.errors import InvalidRequest, TooLarge
from apiserver.protocol.decoding import (
    MOST_CONTAINERS,
    check_length,
    check_range,
    decode,
    refuse_unknown,
    refuse_unsupported,
)


class Inner(msgspec.Struct):
    count: int | None = None
    counts: list[int] | None = None
    by_name: dict[str, int] | None = None
    anything: Any = None


class Outer(msgspec.Struct):
    inner: Inner | None = None
    inners: list[Inner] | None = None
    named: dict[str, Inner] | None = None
    ratio: float | None = None
    text: str | None = None
    anything: Any = None


DECODER = msgspec.json.Decoder(Outer)


def refusal(raw: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        decode(raw, DECODER)
    return caught.value


def test_integral_floats_become_integers_where_integers_are_asked_for_and_nowhere_else() -> None:
    raw = b"""{"inner": {"count": 1.0, "counts": [1, 2.0, 3e2], "by_name": {"a": 4.0, "b": 5}, "anything": [1.0]},
               "inners": [{"count": 6}, {"count": 7.0}], "ratio": 8.0, "anything": 9.0}"""
    outer = decode(raw, DECODER)
    assert outer.inner is not None
    assert outer.inner == Inner(1, [1, 2, 300], {"a": 4, "b": 5}, [1.0])
    assert outer.inners == [Inner(6), Inner(7)]
    assert (type(outer.ratio), type(outer.anything)) == (float, float)
    assert type(outer.inner.anything[0]) is float


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b'{"inner": {"count": 1.5}}', "inner.count"),
        (b'{"inner": {"count": 1.0, "counts": [1.0, 2.5]}}', "inner.counts[1]"),
        (b'{"inner": {"by_name": {"a": 1.0, "b": 1.5}}}', "inner.by_name[...]"),
        (b'{"inners": [{}, {"count": 2.5}]}', "inners[1].count"),
        (b'{"named": {"x": {"count": 2.0}}}', "named[...].count"),
        (b'{"inner": 1.0}', "inner"),
        (b'{"text": 1.0}', "text"),
        (b'{"inners": [1.5]}', "inners[0]"),
        (b'{"inner": {"count": 1e999}}', "inner.count"),
        # A key that stands there twice: the document that the fault is looked up in has the last one.
        (b'{"inner": {"count": 1.5}, "inner": null}', "inner.count"),
        (b'{"inner": {"count": 1.0}, "inner": {}}', "inner.count"),
        (b'{"inner": {"counts": [1.5], "counts": 5}}', "inner.counts[0]"),
        (b'{"inners": [{}, {"count": 1.0}], "inners": [{}]}', "inners[1].count"),
    ],
)
def test_other_floats_are_refused_with_their_path(raw: bytes, param: str) -> None:
    assert refusal(raw).param == param


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("{}".encode("utf-16-be"), "not valid JSON"),
        (b"\xfe\xff\x00{\x00}", "byte order mark"),
        (b'{"text": "\xff"}', "UTF-8"),
        (rb'{"text": "\ud800"}', "lone surrogate"),
        (rb'{"text": "\\\ud800"}', "lone surrogate"),
        (rb'{"text": "\udc00 \ud800\udc00"}', "lone surrogate"),
        (rb'{"text": "\ud800\ud800\udc00"}', "lone surrogate"),
        (rb'{"unknown": "\ud800"}', "lone surrogate"),
        (b'{"text": "a', "truncated"),
        (rb'{"text": "\ud83d\ude00', "truncated"),  # a whole pair; what is missing is the quote
        (rb'{"text": "\\ud83d', "truncated"),  # no escape at all, but a backslash and letters
        (rb'{"text": "\ud83d\ude00",}', "trailing comma"),
        (b'{"anything": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
        (b'{"inner": {"count": 1.0}, "unknown": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
        (b'{"inner": {"count": 1.0}, "unknown": "\\ud800"}', "lone surrogate"),
    ],
)
def test_what_is_no_json_is_named_for_what_it_is(raw: bytes, says: str) -> None:
    error = refusal(raw)
    assert says in error.message
    assert error.param is None


def test_a_missing_field_is_the_param() -> None:
    class Strict(msgspec.Struct):
        name: str

    class Holder(msgspec.Struct):
        inner: Strict | None = None

    with pytest.raises(InvalidRequest) as caught:
        decode(b'{"inner": {}}', msgspec.json.Decoder(Holder))
    assert (caught.value.param, caught.value.message) == ("inner.name", "inner.name is required.")


def decodes_or_says_why_not(raw: bytes) -> bool:
    try:
        decode(raw, DECODER)
    except InvalidRequest as error:
        return len(error.message.encode()) > 0
    return True


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="surrogatepass")))
def test_no_bytes_raise_anything_but_an_invalid_request(raw: bytes) -> None:
    assert decodes_or_says_why_not(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(Outer.__struct_encode_fields__), JSON), st.booleans())
def test_no_values_raise_anything_but_an_invalid_request(document: dict[str, Any], ascii_only: bool) -> None:
    assert decodes_or_says_why_not(json.dumps(document, ensure_ascii=ascii_only).encode(errors="surrogatepass"))


@given(st.text())
def test_every_text_that_is_one_is_taken_however_it_is_escaped(text: str) -> None:
    for ascii_only in (True, False):
        raw = json.dumps({"text": text}, ensure_ascii=ascii_only).encode()
        assert decode(raw, DECODER).text == text


def test_explaining_a_large_broken_body_costs_little() -> None:
    bodies = [b'{"text": "' + filler * 8_000_000 for filler in (b"a", b"\\\\", b"\\u")]
    began = time.process_time()
    for body in bodies:
        refusal(body)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("item", [b"[1]", b"[]", b'{"a":1}'])
def test_more_lists_than_anybody_needs_are_refused_before_they_are_made(item: bytes) -> None:
    raw = b'{"anything":[' + b",".join([item] * MOST_CONTAINERS) + b"]}"
    with pytest.raises(TooLarge) as caught:
        decode(raw, DECODER)
    assert caught.value.status == 413
    assert str(MOST_CONTAINERS) in str(caught.value)


def test_many_lists_are_made_without_the_collector_looking_on() -> None:
    collections = sum(generation["collections"] for generation in gc.get_stats())
    made = decode(b'{"anything":[' + b",".join([b"[1]"] * 300_000) + b"]}", DECODER)
    # One may come behind it; while 300,000 lists are made there would be hundreds.
    assert sum(generation["collections"] for generation in gc.get_stats()) - collections < 10
    assert len(made.anything) == 300_000
    assert gc.isenabled()


def test_strict_fields_name_the_first_unknown_one_in_a_few_letters() -> None:
    with pytest.raises(InvalidRequest) as caught:
        refuse_unknown(b'{"text": "a", "ratio": 1, "new": 2, "newer": 3}', Outer)
    assert (caught.value.param, caught.value.message) == ("new", "Unknown field: new.")
    refuse_unknown(b'{"text": "a", "new": 2}', Outer, {"new"})
    with pytest.raises(InvalidRequest) as caught:
        refuse_unknown(json.dumps({"x" * 10_000: 1}).encode(), Outer)
    assert len(caught.value.message) < 100


def test_a_known_field_may_ask_for_nothing_and_for_nothing_else() -> None:
    harmless = {"text": ("", "none"), "anything": ({}, [])}
    for fields in (Outer(), Outer(text=""), Outer(text="none", anything={}), Outer(anything=[])):
        refuse_unsupported(fields, harmless)
    for fields, param in (
        (Outer(text="some"), "text"),
        (Outer(anything={"a": 1}), "anything"),
        (Outer(text="", anything=0), "anything"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            refuse_unsupported(fields, harmless)
        assert caught.value.param == param


@pytest.mark.parametrize(
    ("value", "low", "high", "exclusive", "says"),
    [
        (-1, 0, 5, False, "x must be at least 0 and at most 5, not -1."),
        (6, 0, 5, False, "x must be at least 0 and at most 5, not 6."),
        (0, 0, float("inf"), True, "x must be above 0, not 0."),
        (
            2**70,
            0,
            2**63 - 1,
            False,
            "x must be at least 0 and at most 9223372036854775807, not 1180591620717411303424.",
        ),
        (10**4000, 0, 2048, False, "x must be at least 0 and at most 2048, not 1000000000"),
        (2.5, 0, 1.5, False, "x must be at least 0 and at most 1.5, not 2.5."),
    ],
)
def test_a_range_is_told_in_whole(value: float, low: float, high: float, exclusive: bool, says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_range("x", value, low, high, exclusive_low=exclusive)
    assert caught.value.message.startswith(says)
    assert len(caught.value.message) < 150
    check_range("x", None, low, high, exclusive_low=exclusive)


def test_a_length_is_told_and_the_text_is_not() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_length("x", "secret" * 100, 10)
    assert caught.value.message == "x has 600 characters; at most 10 are allowed."
    check_length("x", "x" * 10, 10)
    check_length("x", None, 10)

"""Round trips of anything, and the promise that a field appended later breaks nobody."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_bridge import wire
from engine_bridge.wire import Capabilities, FailureKind, FinishReason, SamplingParams, TokenLogprobs

ids = st.integers(0, 2**63 - 1)
numbers = st.integers(-(2**31), 2**31 - 1)
counts = st.integers(0, 2**31 - 1)
floats = st.floats(allow_nan=False)
texts = st.text(max_size=20)
optional_texts = st.none() | texts
packed_ids = st.lists(numbers, max_size=20).map(wire.pack_ids)
pairs = st.lists(st.tuples(counts, floats), max_size=4).map(tuple)
logprobs = st.builds(TokenLogprobs, floats, pairs)

sampling_params = st.builds(
    SamplingParams,
    max_tokens=counts,
    temperature=floats,
    top_p=floats,
    top_k=numbers,
    min_p=floats,
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    presence_penalty=floats,
    frequency_penalty=floats,
    repetition_penalty=floats,
    min_tokens=counts,
    ignore_eos=st.booleans(),
    stop_token_ids=st.lists(counts, max_size=4).map(tuple),
    logit_bias=pairs,
    logprobs=st.none() | counts,
    prompt_logprobs=st.none() | counts,
    json_schema=optional_texts,
    regex=optional_texts,
    grammar=optional_texts,
    lora=optional_texts,
    structural_tag=optional_texts,
)
capabilities = st.builds(
    Capabilities,
    task=st.sampled_from(["generate", "embed"]),
    max_model_len=counts,
    vocab_size=counts,
    eos_token_ids=st.lists(counts, max_size=4).map(tuple),
    dimensions=counts,
    logprobs=numbers,
    json_schema=st.booleans(),
    engine=texts,
    temperature=st.none() | floats,
    top_k=st.none() | numbers,
)
to_core: st.SearchStrategy[wire.ToCore] = st.one_of(
    st.builds(wire.Hello, counts, st.booleans()),
    st.builds(wire.ForEpoch, ids),
    st.builds(wire.Generate, ids, packed_ids, sampling_params, optional_texts, numbers, optional_texts),
    st.builds(wire.Embed, ids, packed_ids, st.none() | counts, optional_texts, numbers),
    st.builds(wire.Score, ids, packed_ids, st.lists(counts, max_size=4).map(tuple)),
    st.builds(wire.Admin, ids, texts, st.binary(max_size=20)),
    st.builds(wire.Abort, st.lists(ids, max_size=5).map(tuple)),
    st.builds(wire.AbortByClientId, texts),
)
to_server: st.SearchStrategy[wire.ToServer] = st.one_of(
    st.builds(wire.Welcome, counts, counts, capabilities),
    st.builds(wire.Scores, ids, st.lists(floats, max_size=4).map(tuple)),
    st.builds(wire.AdminDone, ids, st.binary(max_size=20)),
    st.builds(wire.Rejected, counts, texts),
    st.builds(wire.Heartbeat, ids, counts, counts, counts, seconds_since_output=st.none() | floats, stage=texts),
    st.builds(wire.Accepted, st.lists(ids, max_size=5).map(tuple)),
    st.builds(
        wire.Output,
        ids,
        packed_ids,
        st.none() | st.sampled_from(FinishReason),
        st.none() | counts,
        st.none() | st.lists(logprobs, max_size=3).map(tuple),
        st.none() | st.lists(st.none() | logprobs, max_size=3).map(tuple),
        counts,
        floats,
    ),
    st.builds(wire.Embedding, ids, st.binary(max_size=40), floats),
    st.builds(wire.Failure, ids, st.sampled_from(FailureKind), texts),
    st.builds(wire.EngineDown, texts),
)


@given(st.lists(to_core, max_size=5))
def test_what_the_core_gets_is_what_was_sent(messages: list[wire.ToCore]) -> None:
    assert wire.decode_to_core(wire.encode(messages)) == messages


@given(st.lists(to_server, max_size=5))
def test_what_an_api_server_gets_is_what_was_sent(messages: list[wire.ToServer]) -> None:
    assert wire.decode_to_server(wire.encode(messages)) == messages


@given(st.lists(numbers))
def test_packed_ids_come_back(token_ids: list[int]) -> None:
    assert wire.unpack_ids(wire.pack_ids(token_ids)) == token_ids


@pytest.mark.parametrize("token_id", [2**31, -(2**31) - 1])
def test_an_id_beyond_int32_is_not_packed(token_id: int) -> None:
    with pytest.raises(OverflowError):
        wire.pack_ids([token_id])


# ---- a later release at the other end ----

anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | floats | texts | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def appended(value: Any, extra: list[Any]) -> Any:
    """As a later release would send it: every struct has more fields behind those we know."""
    match value:
        case msgspec.Struct():
            tag = value.__struct_config__.tag
            fields = [appended(getattr(value, name), extra) for name in value.__struct_fields__]
            return ([tag] if tag is not None else []) + fields + extra
        case tuple():
            # Pairs are no structs, their length is fixed; lists of structs and of pairs are looked into.
            return [appended(item, extra) for item in value]
        case _:
            return value


@settings(max_examples=60)
@given(st.lists(to_core, min_size=1, max_size=3), st.lists(anything, min_size=1, max_size=3))
def test_the_core_reads_past_fields_that_it_does_not_know(messages: list[wire.ToCore], extra: list[Any]) -> None:
    future = msgspec.msgpack.encode([appended(message, extra) for message in messages])
    assert wire.decode_to_core(future) == messages


@settings(max_examples=60)
@given(st.lists(to_server, min_size=1, max_size=3), st.lists(anything, min_size=1, max_size=3))
def test_an_api_server_reads_past_fields_that_it_does_not_know(messages: list[wire.ToServer], extra: list[Any]) -> None:
    future = msgspec.msgpack.encode([appended(message, extra) for message in messages])
    assert wire.decode_to_server(future) == messages


# ---- an earlier release at the other end ----


def test_fields_that_were_not_sent_have_their_defaults() -> None:
    ids_of_one = wire.pack_ids([1])
    assert wire.decode_to_core(msgspec.msgpack.encode([["g", 1, ids_of_one, []]])) == [
        wire.Generate(1, ids_of_one, SamplingParams())
    ]
    assert wire.decode_to_core(msgspec.msgpack.encode([["e", 1, ids_of_one]])) == [wire.Embed(1, ids_of_one)]
    assert wire.decode_to_server(msgspec.msgpack.encode([["o", 1]])) == [wire.Output(1)]
    assert wire.decode_to_server(msgspec.msgpack.encode([["w", 1, 1, ["embed", 512, 100]]])) == [
        wire.Welcome(1, 1, Capabilities("embed", 512, 100))
    ]


# ---- no release of ours at the other end ----


@settings(max_examples=200)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_decode_or_raise_what_the_ends_expect(payload: bytes) -> None:
    for decode in (wire.decode_to_core, wire.decode_to_server):
        try:
            decode(payload)
        except (ValueError, msgspec.DecodeError):
            continue

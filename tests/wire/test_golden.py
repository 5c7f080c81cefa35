"""The bytes of each message, per WIRE_VERSION. Appending a field lengthens them: put the new bytes here, the old ones
among EARLIER. Any other change is another protocol: raise the version.
"""

from typing import Any, get_args

import msgspec
import pytest

from engine_bridge import wire
from engine_bridge.wire import (
    Abort,
    AbortByClientId,
    Accepted,
    Admin,
    AdminDone,
    Capabilities,
    Embed,
    Embedding,
    EngineDown,
    Failure,
    FailureKind,
    FinishReason,
    ForEpoch,
    Generate,
    Heartbeat,
    Hello,
    Output,
    Rejected,
    SamplingParams,
    Score,
    Scores,
    TokenLogprobs,
    Welcome,
)

IDS = bytes.fromhex("01000000020000002c010000")  # 1, 2, 300

TO_CORE: list[tuple[wire.ToCore, str]] = [
    (Hello(1), "9193a16801c2"),
    (Hello(1, heartbeats=True), "9193a16801c3"),
    (ForEpoch(7), "9192a17407"),
    (
        Generate(1, IDS, SamplingParams()),
        "9198a16701c40c01000000020000002c010000dc001510cb3ff0000000000000cb3ff0000000000000ffcb00000000000000"
        "00c0cb0000000000000000cb0000000000000000cb3ff000000000000000c29090c0c0c0c0c0c0c090c000c0a0",
    ),
    (
        Generate(
            2,
            IDS,
            SamplingParams(
                max_tokens=5,
                temperature=0.5,
                top_p=0.9,
                top_k=40,
                min_p=0.1,
                seed=-7,
                presence_penalty=0.25,
                frequency_penalty=-0.25,
                repetition_penalty=1.5,
                min_tokens=2,
                ignore_eos=True,
                stop_token_ids=(3, 4),
                logit_bias=((5, -1.0),),
                logprobs=2,
                prompt_logprobs=0,
                json_schema="{}",
                regex="a+",
                grammar="root",
                lora="x",
            ),
            client_request_id="client-1",
            priority=-3,
            cache_salt="salt",
            owner="alice",
        ),
        "9198a16702c40c01000000020000002c010000dc001505cb3fe0000000000000cb3feccccccccccccd28cb3fb99999999999"
        "9af9cb3fd0000000000000cbbfd0000000000000cb3ff800000000000002c3920304919205cbbff00000000000000200a27b"
        "7da2612ba4726f6f74a178c090a8636c69656e742d31fda473616c74a5616c696365",
    ),
    (Embed(3, IDS), "9197a16503c40c01000000020000002c010000c0c000a0"),
    (
        Embed(4, IDS, dimensions=64, client_request_id="client-2", priority=1),
        "9197a16504c40c01000000020000002c01000040a8636c69656e742d3201a0",
    ),
    (Abort((5, 6)), "9192a161920506"),
    (Score(5, IDS, (7, 8)), "9197a17305c40c01000000020000002c010000920708c000a0"),
    (Admin(6, "flush_cache"), "9194a16d06ab666c7573685f6361636865c4027b7d"),
    (AbortByClientId("client-1"), "9193a163a8636c69656e742d31c0"),
    (AbortByClientId("client-1", ""), "9193a163a8636c69656e742d31a0"),
]

TO_SERVER: list[tuple[wire.ToServer, str]] = [
    (
        Welcome(1, 2, Capabilities("generate", 4096, 259)),
        "9194a1770102dc001ba867656e6572617465cd1000cd01039000c200c2c2c2c2c2c2c2a0c0c0c0c2c2c290a090c3c2c2",
    ),
    (
        Welcome(
            1,
            3,
            Capabilities(
                task="embed",
                max_model_len=512,
                vocab_size=30522,
                eos_token_ids=(102,),
                dimensions=384,
                matryoshka=True,
                logprobs=20,
                prompt_logprobs=True,
                min_tokens=True,
                logit_bias=True,
                json_schema=True,
                regex=True,
                grammar=True,
                lora=True,
                engine="sim",
                temperature=0.7,
                top_p=0.8,
                top_k=20,
            ),
        ),
        "9194a1770103dc001ba5656d626564cd0200cd773a9166cd0180c314c3c3c3c3c3c3c3a373696dcb3fe6666666666666cb3f"
        "e999999999999a14c2c2c290a090c3c2c2",
    ),
    (Rejected(1, "no"), "9193a17201a26e6f"),
    (Heartbeat(7, 1, 2, 3), "919fa16207010203000000c00000000000a0"),
    (
        Heartbeat(7, 0, 2, 3, 4, 5, 6, 0.5, 8, 9, 10, 11, 12, "loading"),
        "919fa16207000203040506cb3fe000000000000008090a0b0ca76c6f6164696e67",
    ),
    (Accepted((1, 2)), "9192a16b920102"),
    (Output(1), "9199a16f01c400c0c0c0c000cb0000000000000000"),
    (
        Output(
            2,
            IDS,
            finish_reason=FinishReason.STOP,
            stop_token_id=300,
            logprobs=(TokenLogprobs(-0.5, ((7, -0.5), (8, -1.5))),),
            prompt_logprobs=(None, TokenLogprobs(-2.0)),
            cached_tokens=3,
            queued_seconds=0.25,
        ),
        "9199a16f02c40c01000000020000002c01000000cd012c9193cbbfe0000000000000929207cbbfe00000000000009208cbbf"
        "f80000000000009092c093cbc000000000000000909003cb3fd0000000000000",
    ),
    (Embedding(3, bytes.fromhex("0000803f"), 0.25), "9194a17603c4040000803fcb3fd0000000000000"),
    (Scores(5, (-0.5, -1.0)), "9194a16c0592cbbfe0000000000000cbbff0000000000000cb0000000000000000"),
    (AdminDone(6), "9193a16e06c4027b7d"),
    (Failure(4, FailureKind.OVERLOADED, "full"), "9194a1660401a466756c6c"),
    (EngineDown("bye"), "9192a164a3627965"),
]

EARLIER: list[tuple[wire.ToServer, str]] = [
    (Output(1), "9198a16f01c400c0c0c0c000"),  # before queued_seconds
    (Embedding(3, bytes.fromhex("0000803f")), "9193a17603c4040000803f"),  # before queued_seconds
    (
        Welcome(1, 2, Capabilities("generate", 4096, 259)),
        "9194a1770102dc0012a867656e6572617465cd1000cd01039000c200c2c2c2c2c2c2c2a0c0c0c0",
    ),  # before score, priority and admin
    (
        Welcome(1, 2, Capabilities("generate", 4096, 259)),
        "9194a1770102dc0019a867656e6572617465cd1000cd01039000c200c2c2c2c2c2c2c2a0c0c0c0c2c2c290a090c3",
    ),  # before tag_formats
    (
        Output(2, IDS, logprobs=(TokenLogprobs(-0.5, ((7, -0.5),)),)),
        "9199a16f02c40c01000000020000002c010000c0c09192cbbfe0000000000000919207cbbfe0000000000000c000cb0000000000000000",
    ),  # before asked
]
"""What this version looked like before fields were appended to it; it must always be readable."""


EARLIER_TO_CORE: list[tuple[wire.ToCore, str]] = [
    (Hello(1), "9192a16801"),  # before heartbeats
    (
        Generate(1, IDS, SamplingParams()),
        "9197a16701c40c01000000020000002c010000dc001310cb3ff0000000000000cb3ff0000000000000ffcb00000000000000"
        "00c0cb0000000000000000cb0000000000000000cb3ff000000000000000c29090c0c0c0c0c0c0c000c0",
    ),  # before structural_tag
    (
        Generate(1, IDS, SamplingParams()),
        "9197a16701c40c01000000020000002c010000dc001410cb3ff0000000000000cb3ff0000000000000ffcb00000000000000"
        "00c0cb0000000000000000cb0000000000000000cb3ff000000000000000c29090c0c0c0c0c0c0c0c000c0",
    ),  # before owner, as the next three
    (Embed(3, IDS), "9196a16503c40c01000000020000002c010000c0c000"),
    (Score(5, IDS, (7, 8)), "9196a17305c40c01000000020000002c010000920708c000"),
    (AbortByClientId("client-1"), "9192a163a8636c69656e742d31"),
    (
        Generate(1, IDS, SamplingParams()),
        "9198a16701c40c01000000020000002c010000dc001410cb3ff0000000000000cb3ff0000000000000ffcb00000000000000"
        "00c0cb0000000000000000cb0000000000000000cb3ff000000000000000c29090c0c0c0c0c0c0c0c000c0a0",
    ),  # before token_ids_logprob
]


def name_of(value: Any) -> str | None:
    return type(value).__name__ if isinstance(value, msgspec.Struct) else ""


def test_these_are_the_bytes_of_this_version() -> None:
    assert wire.WIRE_VERSION == 1


@pytest.mark.parametrize(("message", "golden"), TO_CORE, ids=name_of)
def test_a_message_to_the_core_has_its_bytes(message: wire.ToCore, golden: str) -> None:
    assert wire.encode([message]).hex() == golden
    assert wire.decode_to_core(bytes.fromhex(golden)) == [message]


@pytest.mark.parametrize(("message", "golden"), TO_SERVER, ids=name_of)
def test_a_message_to_an_api_server_has_its_bytes(message: wire.ToServer, golden: str) -> None:
    assert wire.encode([message]).hex() == golden
    assert wire.decode_to_server(bytes.fromhex(golden)) == [message]


@pytest.mark.parametrize(("message", "golden"), EARLIER, ids=name_of)
def test_what_this_version_once_was_can_still_be_read(message: wire.ToServer, golden: str) -> None:
    assert wire.decode_to_server(bytes.fromhex(golden)) == [message]


@pytest.mark.parametrize(("message", "golden"), EARLIER_TO_CORE, ids=name_of)
def test_what_an_earlier_api_server_sends_can_still_be_read(message: wire.ToCore, golden: str) -> None:
    assert wire.decode_to_core(bytes.fromhex(golden)) == [message]


def test_every_kind_of_message_is_here() -> None:
    assert {type(message) for message, _ in TO_CORE} == set(get_args(wire.ToCore))
    assert {type(message) for message, _ in TO_SERVER} == set(get_args(wire.ToServer))


def test_the_numbers_of_reasons_and_kinds_never_change() -> None:
    assert {reason.name: reason.value for reason in FinishReason} == {"STOP": 0, "LENGTH": 1, "ABORT": 2, "ERROR": 3}
    assert {kind.name: kind.value for kind in FailureKind} == {
        "INVALID": 0,
        "OVERLOADED": 1,
        "INTERNAL": 2,
        "ABORTED": 3,
        "UNAVAILABLE": 4,
    }


def test_token_ids_are_little_endian_int32() -> None:
    assert wire.pack_ids([1, 2, 300]) == IDS
    assert wire.unpack_ids(IDS) == [1, 2, 300]

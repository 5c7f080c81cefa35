"""Conversations that were recorded come out as they did, byte by byte. See tests/recording.py."""

import json

import pytest

from tests import event_streams
from tests.recording import DIALECTS, Recording, recordings, stable

AT_LEAST = 3


@pytest.mark.parametrize("recording", recordings(), ids=lambda recording: recording.name)
def test_a_recorded_conversation_comes_out_as_it_did(recording: Recording) -> None:
    streamed = recording.streamed()
    event_streams.check(streamed)
    assert streamed.decode() == recording.expected_stream.read_text(encoding="utf-8")
    assert recording.whole().decode() + "\n" == recording.expected_whole.read_text(encoding="utf-8")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_each_dialect_has_recordings(dialect: str) -> None:
    assert sum(recording.path.parent.name == dialect for recording in recordings()) >= AT_LEAST


def test_what_changes_from_run_to_run_is_made_stable_and_nothing_else() -> None:
    document = {"id": "chatcmpl-" + "0a" * 12, "created": 1700000000, "other": "call_" + "0b" * 12, "text": "12"}
    data = json.dumps(document, separators=(",", ":")).encode()
    assert stable(data) == b'{"id":"chatcmpl-0","created":0,"other":"call_1","text":"12"}'

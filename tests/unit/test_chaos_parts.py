"""What scripts/chaos calls a finding, and what it does not; its schedule; the rule for memory."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from tests.script_parts import load_parts

[flatness] = load_parts("benchlib", "flatness")
ask, connection, faults, findings, generating, reading, verdict, words = load_parts(
    "chaoslib", "ask", "connection", "faults", "findings", "generating", "reading", "verdict", "words"
)


def reply(status: int, body: object, *, complete: bool = True, left: bool = False, retry_after: str = "") -> Any:
    headers = {"retry-after": retry_after} if retry_after else {}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return connection.Reply(status=status, headers=headers, body=bytearray(data), complete=complete, left=left)


def event(document: object) -> bytes:
    return b"data: " + (document if isinstance(document, bytes) else json.dumps(document).encode()) + b"\n\n"


def piece(text: str, finish_reason: str | None = None, index: int = 0) -> bytes:
    return event({"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish_reason}]})


def chat(text: str, finish_reason: str | None = "stop") -> Any:
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}


WHOLE = generating.simple("chat", "mine", stream=False)
STREAM = generating.simple("chat", "mine", stream=True)
DONE = event(b"[DONE]")
FAILURE = event({"error": {"message": "the engine died"}})


def outcome(asked: Any, answer: Any, *, was_doomed: bool = False) -> tuple[str, bool]:
    """What it is called, and whether it is a finding."""
    judged = verdict.judge(asked, answer, was_doomed=was_doomed)
    return judged.outcome, judged.finding is not None


def test_the_text_that_was_asked_for_is_no_finding() -> None:
    assert outcome(WHOLE, reply(200, chat("mine"))) == ("ok", False)
    assert outcome(STREAM, reply(200, piece("mi") + piece("ne") + piece("", "stop") + DONE)) == ("ok", False)


@pytest.mark.parametrize("text", ["", "min", "mine, and more", "another's"])
def test_any_other_text_is_a_finding(text: str) -> None:
    assert outcome(WHOLE, reply(200, chat(text))) == ("wrong text", True)
    assert outcome(STREAM, reply(200, piece(text) + piece("", "stop") + DONE)) == ("wrong text", True)


def test_a_stream_that_ends_with_an_error_has_said_the_beginning_of_its_text() -> None:
    assert outcome(STREAM, reply(200, piece("mi") + FAILURE + DONE)) == ("error event", False)
    assert outcome(STREAM, reply(200, piece("yo") + FAILURE + DONE)) == ("wrong text", True)


@pytest.mark.parametrize("end", [b"", DONE, piece("", "stop")])
def test_a_complete_answer_without_an_end_is_a_finding(end: bytes) -> None:
    assert outcome(STREAM, reply(200, piece("mine") + end))[1]


def test_a_lost_connection_is_a_finding_unless_its_api_server_was_killed() -> None:
    for body in (b"", piece("mi")):
        broken = reply(200 if body else 0, body, complete=False)
        assert outcome(STREAM, broken) == ("lost", True)
        assert outcome(STREAM, broken, was_doomed=True) == ("lost with its API server", False)
    assert outcome(STREAM, reply(200, piece("yo"), complete=False), was_doomed=True) == ("wrong text", True)
    assert outcome(STREAM, reply(200, piece("mi"), complete=False, left=True)) == ("left", False)


def test_refusals_are_of_the_kinds_that_are_allowed() -> None:
    error = {"error": {"message": "busy"}}
    assert outcome(WHOLE, reply(503, error, retry_after="1")) == ("503", False)
    assert outcome(WHOLE, reply(503, error)) == ("503", True)
    assert outcome(WHOLE, reply(500, error)) == ("500", True)
    assert outcome(replace(WHOLE, trouble="error"), reply(500, error)) == ("500", False)
    assert outcome(WHOLE, reply(400, error)) == ("400", True)
    assert outcome(WHOLE, reply(504, b"<html>")) == ("504", True)


def test_a_choice_too_many_or_too_few_is_a_finding() -> None:
    asked = replace(STREAM, expected=ask.Expected({0: "mine", 1: "mine"}))
    one = piece("mine") + piece("", "stop")
    assert outcome(asked, reply(200, one + DONE)) == ("wrong text", True)
    assert outcome(STREAM, reply(200, one + piece("mine", "stop", 1) + DONE)) == ("wrong text", True)


def test_a_tool_call_of_somebody_else_is_a_finding() -> None:
    asked = replace(WHOLE, expected=ask.Expected({0: ""}, (("look", {"at": "mine"}),)))

    def calling(at: str) -> Any:
        document = chat("", "tool_calls")
        call = {"function": {"name": "look", "arguments": json.dumps({"at": at})}}
        document["choices"][0]["message"]["tool_calls"] = [call]
        return reply(200, document)

    assert outcome(asked, calling("mine")) == ("ok", False)
    assert outcome(asked, calling("yours")) == ("wrong text", True)


def test_what_is_not_json_is_a_finding() -> None:
    assert outcome(WHOLE, reply(200, b"{")) == ("unreadable", True)


def test_a_seed_is_a_schedule_and_every_kind_is_in_a_long_one() -> None:
    one, same, other = (faults.plan(Random(seed), faults.LOCAL, 600) for seed in (1, 1, 2))
    assert one == same != other
    assert {planned.kind for planned in one} == set(faults.LOCAL)
    assert {planned.kind for planned in faults.plan(Random(3), faults.REMOTE, 120)} == set(faults.REMOTE)


def test_a_seed_is_a_conversation_and_no_text_comes_twice() -> None:
    def asked(seed: int) -> list[Any]:
        rng = Random(seed)
        client = generating.Generating(rng, words.Texts(rng, "a"))
        return [client.next() for _ in range(300)]

    bodies = [json.dumps(each.body) for each in asked(1)]
    assert bodies == [json.dumps(each.body) for each in asked(1)]
    assert len(set(bodies)) == len(bodies)
    assert {each.dialect for each in asked(1)} == {*generating.DIALECTS, "token ids"}


def test_an_outage_lasts_until_a_request_that_began_after_it_succeeds() -> None:
    seen = findings.Findings()
    seen.fault("here", "kill")
    at = seen.faults[0].at
    seen.successes["here"] = [(at - 1, at + 0.1), (at + 0.2, at + 0.7), (at + 0.3, at + 0.5)]
    seen.strengths["here"] = [(at - 0.1, True), (at + 0.1, False), (at + 0.4, True)]
    half, less = ({"median": pytest.approx(seconds), "longest": pytest.approx(seconds)} for seconds in (0.5, 0.4))
    assert seen.outages() == {"here: kill": {"count": 1, "to_success": half, "to_full_strength": less}}
    seen.fault("there", "kill")
    assert seen.outages()["there: kill"]["to_success"] == {"median": None, "longest": None}


def test_memory_is_flat_if_it_does_not_grow_after_the_warm_up() -> None:
    warm = [10e6, 20e6, 30e6, 40e6, 50e6, *[60e6] * 15]
    assert flatness.flatness(warm)["is_flat"] is True
    leaking = [60e6 + 2e6 * number for number in range(20)]
    assert flatness.flatness(leaking)["is_flat"] is False
    assert flatness.flatness(warm[:10])["is_flat"] is None
    assert [flatness.verdict(flatness.flatness(each)) for each in (warm, leaking, [])] == ["yes", "NO", "-"]

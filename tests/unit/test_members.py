"""Whose key may still be used, by a list that changes under open connections."""

from collections.abc import Mapping

import pytest

from engine_bridge.keys import KeyProblem
from engine_bridge.members import Members


class List:
    """As a directory of keys is; None: it cannot be read."""

    def __init__(self, *keys: bytes) -> None:
        self.keys: tuple[bytes, ...] | None = keys

    def names(self) -> Mapping[bytes, str]:
        if self.keys is None:
            raise KeyProblem("cannot read it")
        return {key: key.decode() for key in self.keys}


def look(members: Members) -> list[bytes]:
    return list(members.removed())


def test_a_removed_key_is_out_at_the_second_look_and_told_once() -> None:
    allowed = List(b"east", b"west")
    members = Members(allowed)
    assert all([members.hear(b"1", b"east"), members.hear(b"2", b"east"), members.hear(b"3", b"west")])
    assert look(members) == []
    allowed.keys = (b"west",)
    assert look(members) == []
    assert members.hear(b"1", b"east")
    assert look(members) == [b"1", b"2"]
    assert look(members) == []
    assert not members.hear(b"1", b"east")
    assert not members.hear(b"new", b"east")
    assert members.hear(b"3", b"west")


def test_who_was_shut_out_stays_out_while_nothing_is_heard_of_him() -> None:
    allowed = List()
    members = Members(allowed)
    members.hear(b"1", b"east")
    look(members)
    assert look(members) == [b"1"]
    members.forget(b"1")
    members.forget(b"1")
    assert look(members) == []
    assert not members.hear(b"1", b"east")
    allowed.keys = (b"east",)
    assert look(members) == []
    assert members.hear(b"1", b"east")


def test_a_file_that_is_being_written_anew_shuts_nobody_out() -> None:
    allowed = List(b"east")
    members = Members(allowed)
    members.hear(b"1", b"east")
    for keys in ((), (b"east",), (), (b"east",)):
        allowed.keys = keys
        assert look(members) == []
    assert members.hear(b"1", b"east")


def test_a_list_that_cannot_be_read_shuts_nobody_out_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    allowed = List(b"east")
    members = Members(allowed)
    members.hear(b"1", b"east")
    for _ in range(2):
        allowed.keys = None
        assert look(members) == look(members) == look(members) == []
        assert members.hear(b"1", b"east")
        allowed.keys = (b"east",)
        assert look(members) == []
    assert caplog.text.count("those who are connected stay: cannot read it") == 2

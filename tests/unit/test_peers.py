"""Whose silence is noticed, and whose is not his fault. Times are given, not waited for."""

from engine_bridge.peers import Peers


def test_who_is_heard_is_not_silent_and_who_is_not_is() -> None:
    peers = Peers(2.0)
    peers.expect(b"a", 0.0)
    peers.expect(b"b", 0.0)
    for now in (0.0, 0.5, 1.0, 1.5):
        assert list(peers.silent(now)) == []
        peers.hear(b"a", now)
    peers.hear(b"stranger", 1.5)
    assert list(peers.silent(2.2)) == [b"b"]
    assert b"stranger" not in peers


def test_who_is_forgotten_is_never_silent() -> None:
    peers = Peers(1.0)
    peers.expect(b"a", 0.0)
    peers.forget(b"a")
    peers.forget(b"a")
    assert list(peers.silent(0.9)) == []
    assert list(peers.silent(1.8)) == []


def test_nobody_is_silent_because_we_stood_still() -> None:
    peers = Peers(2.0)
    peers.expect(b"a", 0.0)
    assert list(peers.silent(0.5)) == []
    assert list(peers.silent(10.0)) == []  # nobody looked for 9.5 s
    assert list(peers.silent(10.9)) == []
    assert list(peers.silent(11.8)) == []
    assert list(peers.silent(12.1)) == [b"a"]

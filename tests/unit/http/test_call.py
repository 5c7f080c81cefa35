"""One request as the endpoints see it, and whose key it brings; no socket takes part."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from starlette.types import Message

from apiserver.api_keys import ApiKey, Caller, digest_of
from apiserver.errors import ApiError, TooLarge, Unauthorized, UnsupportedEncoding, UnsupportedMediaType
from apiserver.http.access import KeyGuard
from apiserver.http.call import Call


class Wire:
    """Both ends of ASGI: what the client sends, piece by piece, and what it was sent."""

    def __init__(self, pieces: Iterable[bytes] = ()) -> None:
        parts = list(pieces) or [b""]
        self._messages: list[Message] = [
            {"type": "http.request", "body": part, "more_body": part is not parts[-1]} for part in parts
        ]
        self.received = 0
        self.sent: list[Message] = []

    async def receive(self) -> Message:
        self.received += 1
        return self._messages.pop(0)

    async def send(self, message: Message) -> None:
        self.sent.append(dict(message))

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


def call(wire: Wire | None = None, *, most: int = 100, headers: Iterable[tuple[bytes, bytes]] = ()) -> Call:
    wire = wire or Wire()
    return Call(
        {"type": "http", "path": "/", "method": "POST", "headers": list(headers)}, wire.receive, wire.send, most
    )


def read(wire: Wire, **options: Any) -> bytes:
    return asyncio.run(call(wire, **options).body())


def test_a_body_in_pieces_is_put_together() -> None:
    assert read(Wire([b"a" * 30, b"b" * 30, b"", b"c" * 40])) == b"a" * 30 + b"b" * 30 + b"c" * 40
    assert read(Wire()) == b""


@pytest.mark.parametrize("pieces", [[b"a" * 101], [b"a" * 50, b"a" * 51], [b"a" * 101, b"more"]])
def test_a_body_over_the_limit_is_refused(pieces: list[bytes]) -> None:
    with pytest.raises(TooLarge, match="larger than 100 bytes"):
        read(Wire(pieces))


def test_a_body_is_not_asked_for_where_its_length_says_enough() -> None:
    wire = Wire([b"a" * 101])
    with pytest.raises(TooLarge):
        read(wire, headers=[(b"content-length", b"101")])
    assert wire.received == 0


def test_of_a_repeated_header_the_first_counts() -> None:
    assert call(headers=[(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]).header(b"a") == b"1"
    assert call().header(b"a") is None


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ([], UnsupportedMediaType),
        ([(b"content-type", b"")], UnsupportedMediaType),
        ([(b"content-type", b"text/json")], UnsupportedMediaType),
        ([(b"content-type", b"application/json"), (b"content-encoding", b"gzip")], UnsupportedEncoding),
        ([(b"content-type", b"application/json"), (b"transfer-encoding", b"gzip, chunked")], UnsupportedEncoding),
        ([(b"content-type", b"application/json")], None),
        ([(b"content-type", b" APPLICATION/json ; charset=utf-8")], None),
        ([(b"content-type", b"application/json"), (b"content-encoding", b" Identity ")], None),
        ([(b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")], None),
    ],
)
def test_json_is_required_and_nothing_around_it(
    headers: list[tuple[bytes, bytes]], error: type[ApiError] | None
) -> None:
    if error is None:
        call(headers=headers).require_json()
    else:
        with pytest.raises(error):
            call(headers=headers).require_json()


@pytest.mark.parametrize("headers", [[], [(b"expect", b"100-continue")]])
def test_an_answer_to_a_body_that_was_not_asked_for_closes_where_the_client_waits(
    headers: list[tuple[bytes, bytes]],
) -> None:
    unread, read_first = Wire(), Wire()
    asyncio.run(call(unread, headers=headers).respond(400, b"{}"))
    assert unread.headers.get(b"connection") == (b"close" if headers else None)

    async def body_and_answer() -> None:
        request = call(read_first, headers=headers)
        await request.body()
        await request.respond(200, b"{}")

    asyncio.run(body_and_answer())
    assert b"connection" not in read_first.headers


def guarded(*keys: str, **headers: bytes) -> bool:
    """Whether a request with these headers may pass."""
    sent = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    try:
        KeyGuard([ApiKey(key, 0, digest_of(key.encode())) for key in keys]).check(call(headers=sent), admins_only=False)
    except Unauthorized:
        return False
    return True


def with_admins(*names: str, key: bytes | None = None, admins_only: bool = False, **more: bytes) -> Caller | int:
    """Who a request with this key is, among keys that are their own names; "root" is an admin's. Or its error."""
    keys = [ApiKey(name, number, digest_of(name.encode()), name == "root") for number, name in enumerate(names)]
    sent = [(b"authorization", key)] if key is not None else []
    sent += [(name.replace("_", "-").encode(), value) for name, value in more.items()]
    try:
        return KeyGuard(keys).check(call(headers=sent), admins_only=admins_only)
    except ApiError as error:
        return error.status


def test_an_admin_key_opens_everything_and_other_keys_all_but_the_admins_routes() -> None:
    for admins_only in (False, True):
        root = with_admins("alice", "root", key=b"root", admins_only=admins_only)
        assert isinstance(root, Caller)
        assert (root.owner, root.reach, root.may_administer) == ("root", None, True)
    alice = with_admins("alice", "root", key=b"alice")
    assert isinstance(alice, Caller)
    assert (alice.owner, alice.reach, alice.may_administer) == ("alice", "alice", False)
    assert with_admins("alice", "root", key=b"alice", admins_only=True) == 403
    for admins_only in (False, True):
        for key in (b"wrong", b"", None):
            assert with_admins("alice", "root", key=key, admins_only=admins_only) == 401


def test_of_two_keys_the_admins_counts_in_whichever_header() -> None:
    for headers in ({"key": b"alice", "x_api_key": b"root"}, {"key": b"root", "x_api_key": b"alice"}):
        caller = with_admins("alice", "root", admins_only=True, **headers)
        assert isinstance(caller, Caller)
        assert caller.owner == "root"


def test_with_admin_keys_alone_the_rest_is_open_to_everybody() -> None:
    for key in (None, b"placeholder"):
        caller = with_admins("root", key=key)
        assert isinstance(caller, Caller)
        assert (caller.owner, caller.reach, caller.may_administer) == ("", "", False)
        assert with_admins("root", key=key, admins_only=True) == 401
    assert isinstance(with_admins("root", key=b"root", admins_only=True), Caller)


def test_without_admin_keys_every_key_opens_everything() -> None:
    caller = with_admins("alice", key=b"alice", admins_only=True)
    assert isinstance(caller, Caller)
    assert (caller.reach, caller.may_administer) == ("alice", True)
    anybody = with_admins(admins_only=True)
    assert isinstance(anybody, Caller)
    assert (anybody.reach, anybody.may_administer) == ("", True)


def test_without_keys_everybody_may() -> None:
    assert guarded()
    assert guarded(authorization=b"Bearer anything")


def test_a_key_is_taken_from_either_header_and_in_each_spelling() -> None:
    for headers in (
        {"authorization": b"Bearer key"},
        {"authorization": b"bearer   key  "},
        {"authorization": b"key"},
        {"x_api_key": b"key"},
        {"x_api_key": b" key "},
        {"authorization": b"Bearer wrong", "x_api_key": b"key"},
        {"authorization": b"Bearer key", "x_api_key": b"wrong"},
    ):
        assert guarded("other", "key", **headers)
        assert not guarded("other", **headers)


def test_a_key_that_was_configured_empty_lets_nobody_in() -> None:
    for headers in (
        {},
        {"authorization": b""},
        {"authorization": b"Bearer"},
        {"authorization": b"Bearer "},
        {"x_api_key": b""},
    ):
        assert not guarded("", **headers)

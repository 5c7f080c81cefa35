"""A small run of scripts/fuzz over every route, and that it sees what it is there to see."""

import asyncio
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from apiserver.http.app import DIALECTS
from tests.pool import Pool
from tests.script_parts import SCRIPTS, load_parts

pytestmark = pytest.mark.e2e

bodies, inputs, malformed, mutations, state, talk = load_parts(
    "fuzzlib", "bodies", "inputs", "malformed", "mutations", "state", "talk"
)
GET = inputs.request("GET", "/version")
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
ERROR = b'{"error": {"message": "m", "type": "t", "param": null, "code": 400}}'


@pytest.mark.parametrize("task", ["generate", "embed"])
def test_a_small_run_finds_nothing(tmp_path: Path, task: str) -> None:
    command = [sys.executable, str(SCRIPTS / "fuzz"), "--inputs", "400", "--seed", "3", "--tasks", task]
    done = subprocess.run(
        [*command, "--findings", str(tmp_path)], capture_output=True, text=True, check=False, timeout=55
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| all " in done.stdout


def test_every_route_that_takes_a_body_is_sent_to_and_most_have_a_good_one(echo_pool: Pool) -> None:
    routes = {route.path: route for route in bodies.taken(echo_pool.get("/openapi.json").json())}
    assert set(DIALECTS) <= set(routes)
    assert [path for path in DIALECTS if routes[path].good == [{}]] == []
    assert all(routes[path].fields for path in DIALECTS)
    assert not bodies.STOPS_THE_REST & set(routes)


def test_a_seed_makes_the_same_inputs(echo_pool: Pool) -> None:
    routes = bodies.taken(echo_pool.get("/openapi.json").json())
    one, other = Random("5"), Random("5")
    for kind in (*malformed.KINDS, lambda random, routes: mutations.mutated(random, random.choice(routes))):
        assert kind(one, routes) == kind(other, routes)


def said_to(answer: bytes, *, closes: bool = True, path: str = "/version", **options: Any) -> Any:
    """What the fuzzer makes of a server that answers so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        if not closes:
            await reader.read()  # until the client leaves
        writer.close()

    async def test() -> Any:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            return await talk.talk(host, port, inputs.Input("test", path, (GET,), **options))

    return asyncio.run(test())


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (OK, ""),
        (OK + OK, ""),
        (b"HTTP/1.1 400 X\r\ncontent-length: %d\r\n\r\n" % len(ERROR) + ERROR, ""),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", ""),
        (b"", "no answer"),
        (b"HTTP/1.1 200 OK\r\n", "a head without an end"),
        (OK + b"more", "bytes behind the last answer"),
        (b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n", "status 500"),
        (b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n", "status 503"),
        (b"HTTP/1.1 400 X\r\ncontent-length: 4\r\n\r\noops", "an error in no form that we have"),
        (b'HTTP/1.1 404 X\r\ncontent-length: 16\r\n\r\n{"detail": "no"}', "an error in no form that we have"),
        (
            b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1f\r\n{"type": "InternalServerError"}\r\n0\r\n\r\n',
            "an internal error in a stream",
        ),
    ],
)
def test_it_says_what_is_wrong_with_an_answer(answer: bytes, fault: str) -> None:
    assert said_to(answer).fault == fault


def test_it_takes_a_5xx_where_that_is_right() -> None:
    answer = b"HTTP/1.1 504 X\r\ncontent-length: %d\r\n\r\n" % len(ERROR) + ERROR
    assert said_to(answer, may_be=frozenset((504,))).fault == ""


def test_it_sees_a_hang_and_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "_ANSWER_SECONDS", 0.1)
    assert said_to(b"", closes=False).fault == "no end"
    assert said_to(b"", closes=False, must_answer=False).ended == "waits"


def test_it_sees_deaths_and_what_is_left_over() -> None:
    before = state.State((1, 2, 3), 0, 1, 0, 0, {})
    assert list(state.faults(before, before)) == []
    after = state.State((1, 9, 3), 1, 1, 2, 3, {})
    assert [fault.split(":")[0] for fault in state.faults(before, after)] == [
        "a process died",
        "2 requests have no end",
        "3 connections are still open",
    ]

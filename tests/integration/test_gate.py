"""Who may connect to a core's TCP port: whoever shows a key that is among the engine's clients, and nobody else."""

import asyncio
import contextlib
import socket
from contextlib import closing

import pytest

from engine_bridge.address import TcpAddress
from engine_bridge.client import EngineDead
from engine_bridge.core import Core
from engine_bridge.engines.sim import create
from engine_bridge.keys import make_keys, read_client_keys, read_server_keys
from engine_bridge.status import EngineRow, EngineState, Field, make_descriptor
from engine_bridge.transport import ClientKeys, PeerGone, make_context, make_key_pair
from engine_bridge.wire import ABORT_ALL, WIRE_VERSION, AbortByClientId, Admin, EngineDown, ForEpoch, Generate, Hello
from tests.ends import ENDLESS, PROMPT, collect, generate, until
from tests.remote_ends import Remote, RemoteCore, run_remote


async def refused(ends: Remote, core: RemoteCore, keys: ClientKeys | None, reason: str) -> None:
    """A peer with these keys is told `reason` (by ZMQ), and the core has not seen a byte of it."""
    raw = ends.raw(str(await core.address()), keys)
    with contextlib.suppress(PeerGone):  # it may be refused before it can even speak
        raw.say(Hello(WIRE_VERSION), Generate(1, PROMPT, ENDLESS))
    await until(lambda: raw.ended, "the end of the connection")
    assert reason in raw.ended[0]
    assert raw.heard == []
    assert core.row.get(Field.JUNK) == 0
    assert core.row.get(Field.REQUESTS) == 0
    raw.close()


def test_a_key_that_is_not_among_the_clients_gets_nothing() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core()
        known = ends.keys()
        await refused(ends, core, ClientKeys(*make_key_pair(), known.server), "does not let this key in")
        assert ends.gate.refused >= 1
        await ends.welcomed(str(await core.address()))  # the others are served as before

    run_remote(test)


def test_a_stolen_public_key_without_its_secret_gets_nothing() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core()
        known = ends.keys()
        _, other_secret = make_key_pair()
        await refused(ends, core, ClientKeys(known.public, other_secret, known.server), "handshake failed")
        assert ends.gate.refused == 0  # ZMQ did not even ask

    run_remote(test)


def test_an_api_server_speaks_to_no_core_but_its_own() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core()
        known = ends.keys()
        await refused(ends, core, ClientKeys(known.public, known.secret, make_key_pair()[0]), "server.public")

    run_remote(test)


def test_no_keys_at_a_core_with_keys_get_nothing() -> None:
    async def test(ends: Remote) -> None:
        await refused(ends, ends.core(), None, "Do both ends use keys")

    run_remote(test)


def test_keys_at_a_core_without_keys_are_not_given_up() -> None:
    async def test(ends: Remote) -> None:
        await refused(ends, ends.core(keys=False), ends.keys(), "Do both ends use keys")

    run_remote(test)


def test_where_a_forwarder_answers_for_nobody_the_reason_says_that_nobody_may_be_there() -> None:
    async def test(ends: Remote) -> None:
        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as nobody:
            port = nobody.sockets[0].getsockname()[1]
            client, _ = ends.client(f"tcp://127.0.0.1:{port}", ends.keys())
            await until(lambda: client.lost_reason, "a reason")
            for hint in ("Does an engine listen there", "server.public", "among the engine's clients", "engine's log"):
                assert hint in client.lost_reason

    run_remote(test)


def test_a_client_whose_link_is_refused_says_why_and_tells_clients_less(caplog: pytest.LogCaptureFixture) -> None:
    async def test(ends: Remote) -> None:
        core = ends.core()
        address = str(await core.address())
        client, _ = ends.client(address, ClientKeys(*make_key_pair(), ends.keys().server))
        await until(lambda: client.lost_reason, "a refusal")
        with pytest.raises(EngineDead, match="cannot be reached") as told:
            client.require()
        assert address not in str(told.value)
        await until(lambda: "does not let this key in" in caplog.text, "a line in the log")

    run_remote(test)


def test_many_refusals_are_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test(ends: Remote) -> None:
        core = ends.core()
        stranger = ClientKeys(*make_key_pair(), ends.keys().server)
        for _ in range(5):
            await refused(ends, core, stranger, "does not let this key in")
        assert ends.gate.refused == 5
        [line] = [record for record in caplog.records if "refused" in record.message]
        assert stranger.public.decode() in line.message

    run_remote(test)


def test_clients_come_and_go_without_a_restart() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core()
        make_keys(ends.directory, ["later"])
        client, _ = ends.client(str(await core.address()), ends.keys("later"), "later/api-0.1")
        await until(lambda: client.epoch, "a Welcome")
        (ends.directory / "engine" / "clients" / "two.public").unlink()
        await refused(ends, core, ends.keys("two"), "does not let this key in")

    run_remote(test)


def test_a_key_that_is_removed_ends_the_connections_that_it_has_opened(caplog: pytest.LogCaptureFixture) -> None:
    async def test(ends: Remote) -> None:
        core = ends.core("--step-ms", "5")
        address = str(await core.address())
        client, _ = ends.client(address, ends.keys("two"), "two/api-0.1")
        stays = await ends.welcomed(address)
        raw = ends.raw(address, ends.keys("two"))  # whoever does not leave when he is told to
        raw.say(Hello(WIRE_VERSION, heartbeats=True))
        await until(lambda: client.epoch and raw.messages, "both Welcomes")
        async with client.open() as submission, stays.open() as other:
            generate(submission, ENDLESS)
            generate(other, ENDLESS)
            raw.say(ForEpoch(1), Generate(1, PROMPT, ENDLESS))
            await core.counts(3)
            (ends.directory / "engine" / "clients" / "two.public").unlink()
            with pytest.raises(EngineDead, match="no longer takes this pool's key"):
                await collect(submission)
            await core.counts(1)  # the other pool's
            await until(lambda: "does not let this key in" in client.lost_reason, "that it cannot come back")
            assert raw.ended == []
            for message in (Generate(2, PROMPT, ENDLESS), Admin(3, ABORT_ALL), Hello(WIRE_VERSION)):
                raw.heard.clear()
                raw.say(*([] if isinstance(message, Hello) else [ForEpoch(1)]), message)
                await until(lambda: raw.messages, "an answer")
                assert {type(answer) for answer in raw.messages} == {EngineDown}
            await core.counts(1)
            await other.receive()
        assert core.row.get(Field.REQUESTS) == 3

    run_remote(test)


def test_a_key_that_is_put_back_is_let_in_again() -> None:
    async def test(ends: Remote) -> None:
        core = ends.core()
        public = ends.directory / "engine" / "clients" / "two.public"
        client, _ = ends.client(str(await core.address()), ends.keys("two"), "two/api-0.1")
        await until(lambda: client.epoch, "a Welcome")
        public.rename(public.with_suffix(".away"))
        await until(lambda: "does not let this key in" in client.lost_reason, "a refusal")
        public.with_suffix(".away").rename(public)
        await until(lambda: client.epoch, "a Welcome, again")

    run_remote(test)


@pytest.mark.parametrize("keys", [True, False], ids=["with keys", "without keys"])
def test_what_says_no_epoch_is_no_request_and_aborts_nothing(keys: bool) -> None:
    async def test(ends: Remote) -> None:
        core = ends.core("--step-ms", "5", keys=keys)
        own = ends.keys() if keys else None
        client, _ = ends.client(str(await core.address()), own)
        await until(lambda: client.epoch, "a Welcome")
        raw = ends.raw(str(await core.address()), own)
        async with client.open() as submission:
            generate(submission, ENDLESS, "mine")
            await core.counts(1)
            for messages in (
                [Generate(1, PROMPT, ENDLESS)],
                [AbortByClientId("mine")],
                [Hello(WIRE_VERSION), Admin(2, ABORT_ALL)],
            ):
                raw.heard.clear()
                raw.say(*messages)
                await until(lambda: raw.messages, "a refusal")
                assert raw.messages == [EngineDown("the message does not say which engine core it is meant for")]
            assert core.row.get(Field.REQUESTS) == 1
            await core.counts(1)
            await submission.receive()

    run_remote(test)


def test_without_its_list_the_core_lets_nobody_in(caplog: pytest.LogCaptureFixture) -> None:
    async def test(ends: Remote) -> None:
        core = ends.core()
        clients = ends.directory / "engine" / "clients"
        clients.rename(clients.with_name("elsewhere"))
        await refused(ends, core, ends.keys(), "does not let this key in")
        assert "nobody may connect: cannot read" in caplog.text

    run_remote(test)


def test_a_half_copied_key_shuts_out_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    async def test(ends: Remote) -> None:
        core = ends.core()
        (ends.directory / "engine" / "clients" / "half.public").write_text("# the public key of ha")
        await ends.welcomed(str(await core.address()))
        assert "half.public does not hold a key" in caplog.text

    run_remote(test)


def test_a_socket_with_keys_and_without_a_gate_lets_nobody_in() -> None:
    async def test(ends: Remote) -> None:
        context = make_context()
        row = EngineRow.attach(make_descriptor())
        core = Core(create("sim", []), row, epoch=1)
        running = asyncio.create_task(
            core.run(context, "tcp://127.0.0.1:0", read_server_keys(ends.directory / "engine"))
        )
        await until(lambda: core.address, "a bound socket")
        assert core.address is not None
        raw = ends.raw(core.address, read_client_keys(ends.directory / "one"))
        await until(lambda: raw.ended, "the end of the connection")
        raw.close()
        core.stop()
        await running
        context.term()

    run_remote(test)


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        b"\x80\x04\x95\x10\x00\x00\x00",  # the beginning of a pickle
        b"\xff" + b"\x00" * 8 + b"\x7f\x03\x01" + b"NULL" + b"\x00" * 48,  # ZMTP, without a mechanism of ours
        b"\xff" + b"\x00" * 8 + b"\x7f\x03\x01CURVE" + b"\x00" * 47 + b"\x06" + b"\xff" * 8 + b"x" * 64,
        b"\x00" * 100_000,
    ],
    ids=["HTTP", "a pickle", "ZMTP without keys", "a command of 2^64 bytes", "zeros"],
)
def test_junk_on_the_port_is_cut_and_harms_nobody(junk: bytes) -> None:
    async def test(ends: Remote) -> None:
        core = ends.core()
        address = await core.address()
        client = await ends.welcomed(str(address))
        with contextlib.suppress(ConnectionError, BrokenPipeError):  # it may be cut before it has said everything
            await asyncio.to_thread(_say, junk, address)
        assert core.row.get(Field.JUNK) == 0
        assert core.row.state is EngineState.READY
        assert client.epoch == 1

    run_remote(test)


def _say(junk: bytes, address: TcpAddress) -> None:
    """Returns when the other side has closed. Raises OSError if it did sooner, TimeoutError if it never does."""
    with closing(socket.create_connection((address.host, address.port), timeout=10)) as stranger:
        stranger.sendall(junk)
        while stranger.recv(65_536):
            pass

"""Two pools and one engine core, each on a machine (a network namespace) of its own, with keys, delay, loss and cuts.

Where namespaces are forbidden these tests say so and are skipped (with APISERVER_REQUIRE_NETNS=1 they fail instead);
the same is then shown over the loopback alone, by test_remote_engine.py.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.namespaces import Cable, Machine, machine, why_not
from tests.pool import ECHO_TEMPLATE, Pool, running_pool, wait_for
from tests.remote_engine import Engine, Network, make_keys, running_engine, running_network
from tests.streams import text_of

pytestmark = [pytest.mark.e2e, pytest.mark.netns]

LINK_SECONDS = 3
ANSWER_SECONDS = 20.0
TEXT = "The quick brown fox jumps over the lazy dog; größere Häuser überall. " * 8


@dataclass
class Site:
    """A pool, its machine, and how it reaches the engine."""

    pool: Pool
    cable: Cable
    network: Network
    client: httpx.Client

    def ask(self, text: str, *, stream: bool = False) -> httpx.Response:
        body: dict[str, Any] = {"model": "sim", "max_tokens": 9000, "stream": stream}
        return self.client.post("/v1/chat/completions", json={**body, "messages": [{"role": "user", "content": text}]})

    def status(self) -> str:
        return self.client.get("/health").json()["status"]

    def running(self) -> int:
        return self.client.get("/pool").json()["engine"]["running"]


@dataclass
class Sites:
    engine: Engine
    east: Site
    west: Site
    server_key: bytes
    start: Callable[[str, int, Path], Site]  # one that need not become ready


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    reason = why_not()
    if reason is not None:
        if os.environ.get("APISERVER_REQUIRE_NETNS") == "1":
            pytest.fail(f"network namespaces: {reason}")
        pytest.skip(f"NOT SHOWN between namespaces, only over the loopback: {reason}")
    directory = tmp_path_factory.mktemp("sites")
    keys = make_keys(directory / "keys", "east", "west")
    with ExitStack() as stack:
        node = stack.enter_context(machine())
        flags = ("--keys", str(keys / "engine"), "--link-timeout", str(LINK_SECONDS))
        behaviour = ("--mode", "echo", "--step-ms", "3", "--max-model-len", "20000")
        engine = stack.enter_context(
            running_engine(directory / "engine.log", *flags, engine=behaviour, inside=node.inside)
        )

        def start(name: str, number: int, own_keys: Path, *, ready: bool = False) -> Site:
            return _start(stack, directory, node, engine, name, number, own_keys, ready=ready)

        east = start("east", 1, keys / "east", ready=True)
        west = start("west", 2, keys / "west", ready=True)
        yield Sites(engine, east, west, (keys / "engine" / "server.public").read_bytes(), start)


def _start(
    stack: ExitStack, directory: Path, node: Machine, engine: Engine, name: str, number: int, keys: Path, *, ready: bool
) -> Site:
    own = stack.enter_context(machine(node))
    cable = Cable(node, own, number)
    network = stack.enter_context(
        running_network(engine.port, host=cable.near, delay_seconds=0.05, loss=0.01, inside=node.inside)
    )
    socket = directory / f"{name}.sock"
    flags = ["--uds", str(socket), "--api-server-count", "2", "--chat-template", ECHO_TEMPLATE, "--keys", str(keys)]
    flags += ["--engine-address", f"tcp://{cable.near}:{network.port}", "--engine-link-timeout", str(LINK_SECONDS)]
    pool = stack.enter_context(running_pool(directory / f"{name}.log", *flags, inside=own.inside, ready=ready))
    transport = httpx.HTTPTransport(uds=str(socket))
    client = stack.enter_context(httpx.Client(transport=transport, base_url="http://pool", timeout=ANSWER_SECONDS))
    return Site(pool, cable, network, client)


def answers(site: Site, texts: list[str], *, stream: bool) -> list[httpx.Response]:
    """All at once."""
    found: dict[str, httpx.Response] = {}
    threads = [
        threading.Thread(target=lambda text=text: found.__setitem__(text, site.ask(text, stream=stream)))
        for text in texts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[text] for text in texts]


def said(response: httpx.Response) -> str:
    datas = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return text_of([data if data == "[DONE]" else json.loads(data) for data in datas])


def test_streams_survive_delay_and_loss_with_the_same_bytes(sites: Sites) -> None:
    texts = [f"{number} {TEXT}" for number in range(16)]
    for site in (sites.east, sites.west):
        assert [said(response) for response in answers(site, texts, stream=True)] == texts
    lost = [int(site.network.say("heal").split()[1]) for site in (sites.east, sites.west)]
    assert sum(lost) > 0


def test_a_pulled_cable_answers_every_request_and_the_other_pool_does_not_notice(sites: Sites) -> None:
    long = "z" * 9000
    east: list[httpx.Response] = []
    asking = [
        threading.Thread(target=lambda stream=stream: east.append(sites.east.ask(long, stream=stream)))
        for stream in (True, True, False, False)
    ]
    for thread in asking:
        thread.start()
    wait_for(lambda: sites.west.running() == 4, 10, "all four in the engine")
    sites.east.cable.pull()
    west = answers(sites.west, [TEXT], stream=True)
    for thread in asking:
        thread.join()  # each within the client's own limit, or its thread would have failed and left no answer
    # A stream that had not begun when the cable was pulled is a 503 as well.
    assert sorted(response.status_code for response in east) in ([200, 200, 503, 503], [200, 503, 503, 503], [503] * 4)
    assert all("the connection to the engine was lost" in response.text for response in east)
    assert [said(response) for response in west] == [TEXT]
    assert sites.east.ask("Hello").status_code == 503
    assert sites.east.status() != "ok"
    wait_for(lambda: sites.west.running() == 0, 15, "an engine that has dropped the lost pool's requests")
    sites.east.cable.plug_in()
    wait_for(lambda: sites.east.status() == "ok", 30, "a connected pool")
    assert sites.east.ask("Hello").json()["choices"][0]["message"]["content"] == "Hello"


def test_a_peer_without_the_right_key_gets_nothing(sites: Sites, tmp_path_factory: pytest.TempPathFactory) -> None:
    stranger_keys = make_keys(tmp_path_factory.mktemp("stranger"), "stranger") / "stranger"
    (stranger_keys / "server.public").write_bytes(sites.server_key)
    stranger = sites.start("stranger", 3, stranger_keys)
    wait_for(lambda: "does not let this key in" in stranger.pool.log, 20, "a refusal")
    assert stranger.ask("Hello").status_code == 503
    assert "refused" in sites.engine.log
    wait_for(lambda: sites.east.ask("Hello").status_code == 200, 20, "an answer to who has the right key")

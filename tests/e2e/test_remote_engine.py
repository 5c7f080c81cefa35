"""Pools and an engine core that are separate processes with a network between them, here the loopback."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import psutil
import pytest

from tests.conftest import StartPool
from tests.pool import ECHO_TEMPLATE, Pool, wait_for
from tests.remote_engine import Engine, make_keys, running_engine, running_network
from tests.streams import OpenRequest, error_of, text_of

pytestmark = pytest.mark.e2e

LINK_SECONDS = "2"
TEXT = "The quick brown fox jumps over the lazy dog; größere Häuser überall. " * 6
FLAGS = ("--api-server-count", "2", "--chat-template", ECHO_TEMPLATE, "--engine-link-timeout", LINK_SECONDS)
ECHO = ("--mode", "echo", "--step-ms", "3", "--max-model-len", "20000")


def chat(text: str = TEXT, *, stream: bool = True) -> dict[str, object]:
    return {"model": "sim", "stream": stream, "max_tokens": 2000, "messages": [{"role": "user", "content": text}]}


ENDLESS = {"model": "sim", "stream": True, "prompt": "x" * 9000, "max_tokens": 9000}


def answer(pool: Pool) -> str:
    response = pool.post("/v1/chat/completions", chat("Hello", stream=False))
    return response.json()["choices"][0]["message"]["content"] if response.status_code == 200 else ""


def health(pool: Pool) -> str:
    return httpx.get(pool.url + "/health", timeout=10).json()["status"]


def is_well(pool: Pool) -> bool:
    return health(pool) == "ok"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return make_keys(tmp_path / "keys", "east", "west")


@pytest.fixture
def engine(tmp_path: Path, keys: Path) -> Iterator[Engine]:
    flags = ("--keys", str(keys / "engine"), "--link-timeout", LINK_SECONDS)
    with running_engine(tmp_path / "engine.log", *flags, engine=ECHO) as running:
        yield running


def far(
    start_pool: StartPool, address: str, keys: Path, name: str = "east", *, ready: bool = True
) -> AbstractContextManager[Pool]:
    return start_pool(*FLAGS, "--engine-address", address, "--keys", str(keys / name), ready=ready)


def test_two_pools_share_one_engine_and_each_gets_its_own_texts(
    start_pool: StartPool, engine: Engine, keys: Path
) -> None:
    with far(start_pool, engine.address, keys) as east, far(start_pool, engine.address, keys, "west") as west:
        texts = {pool: [f"{pool.url} {number} " + TEXT for number in range(6)] for pool in (east, west)}
        requests = [
            (text, OpenRequest(pool.url, "/v1/chat/completions", chat(text))) for pool in texts for text in texts[pool]
        ]
        for text, request in requests:
            with request:
                assert text_of(request.events()) == text
        for pool in (east, west):
            document = pool.pool()
            assert document["state"] == "ready"
            assert document["engine"]["state"] == "ready"
            assert document["engine"]["pid"] == 0  # not a process of this machine
            wait_for(
                lambda pool=pool: pool.engine()["requests"] == 12, 10, "the engine's own count, which both pools see"
            )
            assert pool.metric("engine_up") == 1
    assert "east connects from 127.0.0.1" in engine.log
    assert "west connects from 127.0.0.1" in engine.log


def test_a_killed_engine_that_is_started_again_serves_again_without_a_restart_of_the_pools(
    start_pool: StartPool, engine: Engine, keys: Path
) -> None:
    with far(start_pool, engine.address, keys) as east, far(start_pool, engine.address, keys, "west") as west:
        pids = east.worker_pids() + west.worker_pids()
        streams = [OpenRequest(pool.url, "/v1/completions", ENDLESS) for pool in (east, west) for _ in range(4)]
        for stream in streams:
            assert stream.status == 200
            stream.read_some()
        epoch = east.engine()["epoch"]
        engine.kill()
        for stream in streams:
            with stream:
                assert error_of(stream.events())["code"] == 503
        for pool in (east, west):
            wait_for(lambda pool=pool: not is_well(pool), 5, "the news")
            assert pool.post("/v1/chat/completions", chat()).status_code == 503
            assert pool.metric("engine_up") == 0
        engine.restart()
        for pool in (east, west):
            wait_for(lambda pool=pool: is_well(pool), 15, "a connected pool")
            assert answer(pool) == "Hello"
            assert pool.engine()["epoch"] != epoch
        assert east.worker_pids() + west.worker_pids() == pids


def test_a_stopped_engine_ends_every_request_within_the_limit(
    start_pool: StartPool, engine: Engine, keys: Path
) -> None:
    with far(start_pool, engine.address, keys) as pool:
        with OpenRequest(pool.url, "/v1/completions", ENDLESS) as stream:
            stream.read_some()
            engine.process.send_signal(signal.SIGSTOP)
            error = error_of(stream.events())  # the test's own limit is 20 s
            assert error["message"] == "the connection to the engine was lost"
        engine.process.send_signal(signal.SIGCONT)
        wait_for(lambda: is_well(pool), 15, "a connected pool")
        assert answer(pool) == "Hello"
        pool.wait_idle()


def test_a_cut_network_ends_every_request_and_the_engine_drops_the_pool(
    start_pool: StartPool, engine: Engine, keys: Path
) -> None:
    with running_network(engine.port) as network:
        address = f"tcp://127.0.0.1:{network.port}"
        with far(start_pool, address, keys) as cut, far(start_pool, engine.address, keys, "west") as other:
            statuses: list[int] = []

            def whole() -> None:
                statuses.append(
                    httpx.post(cut.url + "/v1/completions", json={**ENDLESS, "stream": False}, timeout=20).status_code
                )

            waiting = [threading.Thread(target=whole) for _ in range(3)]
            for thread in waiting:
                thread.start()
            with OpenRequest(cut.url, "/v1/completions", ENDLESS) as stream:
                stream.read_some()
                wait_for(lambda: other.engine()["running"] == 4, 10, "all four")
                network.say("cut")
                assert error_of(stream.events())["code"] == 503
            for thread in waiting:
                thread.join()
            assert statuses == [503] * 3
            assert health(cut) != "ok"
            wait_for(lambda: other.engine()["running"] == 0, 10, "an engine without the lost pool's requests")
            assert answer(other) == "Hello"
            network.say("heal")
            wait_for(lambda: is_well(cut), 15, "a connected pool")
            assert answer(cut) == "Hello"


def test_streams_are_the_same_bytes_through_delay_and_loss(start_pool: StartPool, engine: Engine, keys: Path) -> None:
    with (
        running_network(engine.port, delay_seconds=0.05, loss=0.01) as network,
        far(start_pool, f"tcp://127.0.0.1:{network.port}", keys) as pool,
    ):
        streams = [OpenRequest(pool.url, "/v1/chat/completions", chat(f"{number} {TEXT}")) for number in range(8)]
        for number, stream in enumerate(streams):
            with stream:
                assert text_of(stream.events()) == f"{number} {TEXT}"


def test_a_dead_link_costs_no_memory(start_pool: StartPool, engine: Engine, keys: Path) -> None:
    prompt = {"model": "sim", "prompt": "y" * 9000, "max_tokens": 1}
    with running_network(engine.port) as network, far(start_pool, f"tcp://127.0.0.1:{network.port}", keys) as pool:
        assert pool.post("/v1/completions", prompt).status_code == 200
        network.say("cut")
        wait_for(lambda: pool.post("/v1/completions", prompt).status_code == 503, 15, "the first refusal")
        before = _private_bytes(pool)
        for _ in range(2000):
            assert pool.post("/v1/completions", prompt).status_code == 503
        # 2,000 prompts on the wire are 72 MB.
        assert _private_bytes(pool) - before < 16_000_000
        network.say("heal")
        wait_for(lambda: is_well(pool), 15, "a connected pool")


def _private_bytes(pool: Pool) -> int:
    return sum(psutil.Process(pid).memory_full_info().uss for pid in pool.worker_pids())


def test_the_figures_survive_the_api_server_that_wrote_them(start_pool: StartPool, engine: Engine, keys: Path) -> None:
    with far(start_pool, engine.address, keys) as pool:
        psutil.Process(pool.worker_pids()[0]).kill()
        assert answer(pool) == "Hello"
        before = pool.engine()["requests"]
        assert answer(pool) == "Hello"
        wait_for(lambda: pool.engine()["requests"] > before, 10, "a newer figure")
        wait_for(lambda: is_well(pool), 10, "a whole pool")


def test_a_pool_whose_key_is_unknown_answers_503_and_says_why(
    start_pool: StartPool, engine: Engine, keys: Path
) -> None:
    (keys / "engine" / "clients" / "west.public").unlink()
    with far(start_pool, engine.address, keys, "west", ready=False) as pool:
        wait_for(lambda: "does not let this key in" in pool.log, 20, "the reason")
        response = pool.post("/v1/chat/completions", chat())
        assert response.status_code == 503
        assert "127.0.0.1" not in response.text
        assert health(pool) == "the engine cannot be reached"
        assert pool.stop() == 0
    assert "refused" in engine.log


def replace_keys(keys: Path, tmp_path: Path, *, known: bool) -> None:
    """East has another pair from now on; whether the engine knows it."""
    clients = keys / "engine" / "clients"
    new = make_keys(tmp_path / "new", "east")
    if known:
        (clients / "east-new.public").write_bytes((new / "east" / "client.public").read_bytes())
    for name in ("client.secret", "client.public"):
        (keys / "east" / name).write_bytes((new / "east" / name).read_bytes())


def test_keys_are_changed_by_a_rolling_restart_and_the_old_ones_shut_out(
    start_pool: StartPool, engine: Engine, keys: Path, tmp_path: Path
) -> None:
    with far(start_pool, engine.address, keys) as pool:
        before = set(pool.worker_pids())
        with OpenRequest(pool.url, "/v1/chat/completions", chat()) as stream:
            replace_keys(keys, tmp_path, known=True)
            pool.process.send_signal(signal.SIGHUP)
            wait_for(lambda: "rolling restart is complete" in pool.log, 30, "the end of the restart")
            assert text_of(stream.events()) == TEXT
        wait_for(lambda: not before & set(pool.worker_pids()), 20, "new API servers only")
        (keys / "engine" / "clients" / "east.public").unlink()
        with OpenRequest(pool.url, "/v1/completions", ENDLESS) as stream:
            stream.read_some()
            (keys / "engine" / "clients" / "east-new.public").unlink()
            assert error_of(stream.events())["message"] == "the engine core no longer takes this pool's key"
        wait_for(lambda: not is_well(pool), 10, "the news")
        wait_for(lambda: "does not let this key in" in pool.log, 20, "the reason")
        assert pool.post("/v1/chat/completions", chat()).status_code == 503
    assert "the engine core no longer takes this pool's key" in engine.log


def test_new_keys_that_the_engine_does_not_know_change_nothing(
    start_pool: StartPool, engine: Engine, keys: Path, tmp_path: Path
) -> None:
    with far(start_pool, engine.address, keys) as pool:
        before = set(pool.worker_pids())
        replace_keys(keys, tmp_path, known=False)
        pool.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "the old ones stay" in pool.log, 30, "the complaint")
        assert "not this one: it does not let this key in" in pool.log
        assert answer(pool) == "Hello"
        (keys / "east" / "client.secret").write_text("no key")
        pool.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "everything stays as it is" in pool.log, 30, "the other complaint")
        assert answer(pool) == "Hello"
        assert set(pool.worker_pids()) == before


# ---- a tokenizer here, a model there ----


@pytest.fixture
def smaller_engine(tmp_path: Path) -> Iterator[Engine]:
    """Its model has fewer ids than the pools' tokenizer (one a byte, and three) makes."""
    with running_engine(tmp_path / "engine.log", engine=(*ECHO, "--vocab-size", "200")) as running:
        yield running


TWO_MODELS = "the tokenizer here makes ids up to 255, and the engine's model takes 0 to 199: they are of two models"


def test_a_pool_whose_tokenizer_is_of_another_model_does_not_start(smaller_engine: Engine) -> None:
    ended = run("serve", "sim", "--engine", "sim", "--port", "0", "--engine-address", smaller_engine.address)
    assert ended.returncode == 3
    assert TWO_MODELS in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Try it:" not in ended.stdout


def test_a_local_engine_with_too_few_ids_does_not_start_either() -> None:
    ended = run("serve", "sim", "--engine", "sim", "--port", "0", "--", "--vocab-size", "200")
    assert ended.returncode == 3
    assert TWO_MODELS in ended.stderr


def test_an_engine_that_comes_back_with_another_model_is_not_taken_until_it_is_put_right(
    start_pool: StartPool, engine: Engine, keys: Path
) -> None:
    with far(start_pool, engine.address, keys) as pool:
        pids = pool.worker_pids()
        engine.kill()
        wait_for(lambda: not is_well(pool), 10, "the news")
        engine.restart(*ECHO, "--vocab-size", "200")
        wait_for(lambda: health(pool).startswith(TWO_MODELS), 15, "the reason in /health")
        refused = pool.post("/v1/chat/completions", chat())
        assert refused.status_code == 503
        assert TWO_MODELS in refused.json()["error"]["message"]
        psutil.Process(pids[1]).kill()
        wait_for(lambda: pool.worker_pids()[1] not in (pids[1], 0), 10, "another API server in its place")
        assert health(pool).startswith(TWO_MODELS)
        wait_for(lambda: pool.log.count(f"not taking the engine core: {TWO_MODELS}") == 1, 10, "one line in the log")
        engine.kill()
        engine.restart(*ECHO, "--vocab-size", "5000")
        wait_for(lambda: is_well(pool), 15, "a pool that serves again")
        assert answer(pool) == "Hello"
        assert pool.worker_pids()[0] == pids[0]
        assert pool.log.count("has 5000 ids and the tokenizer here makes 259: are they of one model?") == 1
        assert pool.log.count("not taking the engine core") == 1


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "apiserver", *words], capture_output=True, text=True, timeout=40, check=False
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("engine", "sim", "--engine", "sim", "--listen", "tcp://*:0"), "needs --keys DIR"),
        (("engine", "sim", "--engine", "sim", "--listen", "tcp://0.0.0.0:0"), "needs --keys DIR"),
        (("engine", "sim", "--engine", "sim", "--listen", "tcp://example.org:1", "--keys", "x"), "not a name"),
        (("engine", "sim", "--engine", "sim", "--listen", "here"), "must be tcp://HOST:PORT"),
        (
            ("engine", "sim", "--engine", "sim", "--listen", "tcp://127.0.0.1:0", "--keys", "nowhere"),
            "cannot read the key",
        ),
        (("engine", "nothing", "--listen", "tcp://127.0.0.1:0"), "no such model"),
        (
            ("serve", "sim", "--engine", "sim", "--port", "0", "--engine-address", "tcp://10.0.0.1:1"),
            "needs --keys DIR",
        ),
        (
            ("serve", "sim", "--engine", "sim", "--port", "0", "--engine-address", "tcp://*:1"),
            "where a core may listen",
        ),
        (
            ("serve", "sim", "--engine", "sim", "--port", "0", "--engine-address", "tcp://h:1", "--keys", "nowhere"),
            "cannot read the key",
        ),
    ],
)
def test_what_cannot_start_says_so_in_one_line(words: tuple[str, ...], complaint: str) -> None:
    ended = run(*words)
    assert ended.returncode == 3
    assert complaint in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_port_that_is_taken_ends_the_engine_with_one_line(engine: Engine, keys: Path) -> None:
    ended = run("engine", "sim", "--engine", "sim", "--listen", engine.address, "--keys", str(keys / "engine"))
    assert ended.returncode == 3
    assert "Address already in use" in ended.stderr


def test_sigterm_ends_the_engine_and_tells_whoever_waits(start_pool: StartPool, engine: Engine, keys: Path) -> None:
    with far(start_pool, engine.address, keys) as pool, OpenRequest(pool.url, "/v1/completions", ENDLESS) as stream:
        stream.read_some()
        assert engine.stop() == 0
        assert error_of(stream.events())["message"] == "the engine is shutting down"
        wait_for(lambda: not is_well(pool), 5, "the news")

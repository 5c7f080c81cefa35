"""Real models behind a network: a pool without an engine answers as one that has the engine beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartPool
from tests.pool import Pool
from tests.remote_engine import make_keys, running_engine
from tests.streams import OpenRequest, text_of

pytestmark = pytest.mark.e2e

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the capital of France? Größe, naïve, 東京."}],
    "temperature": 0,
    "max_tokens": 24,
    "logprobs": True,
    "top_logprobs": 2,
}
TEXTS = ["The cat sits on the mat.", "Ein größeres Haus", "東京 is the capital of Japan. " * 20]


@contextmanager
def both(start_pool: StartPool, tmp_path: Path, model: str) -> Iterator[tuple[Pool, Pool]]:
    """One pool with the engine beside it, and one that reaches another process with the same model, with keys."""
    keys = make_keys(tmp_path / "keys", "east")
    flags = ("--api-server-count", "1")
    with (
        running_engine(tmp_path / "engine.log", "--keys", str(keys / "engine"), model=model) as engine,
        start_pool(*flags, model=model) as near,
        start_pool(*flags, "--engine-address", engine.address, "--keys", str(keys / "east"), model=model) as far,
    ):
        yield near, far
        assert "east connects from 127.0.0.1" in engine.log
        for log in (engine.log, far.log, near.log):
            assert "Traceback" not in log
            assert "are they of one model" not in log


@pytest.mark.timeout(120)
def test_a_chat_with_a_real_model_elsewhere_is_the_same(start_pool: StartPool, tmp_path: Path) -> None:
    with both(start_pool, tmp_path, "smollm2") as (near, far):
        choices: list[Any] = []
        for pool in (near, far):
            whole = pool.post("/v1/chat/completions", CHAT).json()
            with OpenRequest(pool.url, "/v1/chat/completions", {**CHAT, "stream": True}) as stream:
                assert text_of(stream.events()) == whole["choices"][0]["message"]["content"]
            choices.append(
                (whole["choices"], whole["usage"], pool.get("/v1/models").json()["data"][0]["max_model_len"])
            )
        ours, theirs = choices
        assert ours[1:] == theirs[1:]
        (mine,), (its,) = ours[0], theirs[0]
        assert "Paris" in mine["message"]["content"]
        assert its["message"] == mine["message"]
        assert its["finish_reason"] == mine["finish_reason"]
        for one, other in zip(mine["logprobs"]["content"], its["logprobs"]["content"], strict=True):
            assert (one["token"], one["bytes"]) == (other["token"], other["bytes"])
            assert one["logprob"] == pytest.approx(other["logprob"], abs=1e-3)


@pytest.mark.timeout(120)
def test_vectors_of_a_real_model_elsewhere_are_the_same(start_pool: StartPool, tmp_path: Path) -> None:
    with both(start_pool, tmp_path, "minilm") as (near, far):
        ours, theirs = (pool.post("/v1/embeddings", {"input": TEXTS}).json() for pool in (near, far))
        assert theirs["usage"] == ours["usage"]
        for one, other in zip(ours["data"], theirs["data"], strict=True):
            assert len(one["embedding"]) == 384
            assert other["embedding"] == pytest.approx(one["embedding"], abs=1e-5)

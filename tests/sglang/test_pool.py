"""A pool with the real SGLang behind it, as people start it and call it."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.pool import Pool, running_pool, wait_for
from tests.sglang.tiny_models import CPU_FLAGS, directory
from tests.streams import OpenRequest, error_of

READY_SECONDS = 150.0  # 15 s on an idle machine; SGLang's imports alone are 5 s of CPU in each of two processes
STREAMS = 64
TOLD_SECONDS = 10.0
ROOM_FOR_ALL = ("--max-total-tokens", "100000")  # so that all streams run at a time
MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


def started(output: Path, model: str, *engine: str) -> Any:
    flags = ("--engine", "sglang", "--api-server-count", "4")
    return running_pool(output, *flags, model=str(directory(model)), engine=[*CPU_FLAGS, *engine], ready=False)


def wait_ready(pool: Pool) -> Pool:
    wait_for(lambda: pool.get("/health").status_code == 200, READY_SECONDS, "a pool that serves")
    return pool


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Pool, list[str]]]:
    """The pool, and the stages that it went through while it loaded."""
    stages: list[str] = []

    def is_ready(pool: Pool) -> bool:
        answer = pool.get("/health")
        stage = answer.json().get("stage")
        if stage and stage not in stages:
            stages.append(stage)
            assert answer.status_code == 503
            assert pool.engine()["stage"] in (stage, *STAGES_THAT_MAY_FOLLOW)
        return answer.status_code == 200

    with started(tmp_path_factory.mktemp("llama") / "pool.log", "llama", *ROOM_FOR_ALL) as pool:
        wait_for(lambda: is_ready(pool), READY_SECONDS, "a pool that serves")
        yield pool, stages


STAGES_THAT_MAY_FOLLOW = ("loading weights", "allocating the cache", "starting to serve", "warming up", "")


def test_it_says_what_it_is_doing_while_it_loads(llama: tuple[Pool, list[str]]) -> None:
    pool, stages = llama
    assert stages[0] in ("importing SGLang", "starting SGLang's processes")
    assert len(stages) >= 2
    assert "sglang: Load weight begin" in pool.log
    assert "server_args=" not in pool.log


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_chats(llama: tuple[Pool, list[str]], stream: bool) -> None:
    pool, _ = llama
    (model,) = [each.id for each in pool.openai.models.list()]
    arguments: Any = {"model": model, "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    whole = pool.openai.chat.completions.create(**arguments)
    assert whole.choices[0].finish_reason in ("length", "stop")
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 12
    if stream:
        chunks = pool.openai.chat.completions.create(**arguments, stream=True)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content


def test_the_official_client_completes_with_logprobs_and_choices(llama: tuple[Pool, list[str]]) -> None:
    pool, _ = llama
    arguments: Any = {"model": "m", "max_tokens": 5, "n": 3, "logprobs": 2, "echo": False}
    arguments["model"] = next(iter(pool.openai.models.list())).id
    answer = pool.openai.completions.create(prompt=[[1, 5611], [1, 1183, 6333]], **arguments)
    assert [choice.index for choice in answer.choices] == list(range(6))
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs is not None
        assert choice.logprobs.top_logprobs is not None
        assert len(choice.logprobs.token_logprobs) == len(choice.logprobs.top_logprobs) <= 5
        assert all(logprob <= 0 for logprob in choice.logprobs.token_logprobs)


def test_an_echo_has_the_prompts_logprobs(llama: tuple[Pool, list[str]]) -> None:
    pool, _ = llama
    body = {"prompt": [1, 1183, 6333, 1070], "max_tokens": 2, "echo": True, "logprobs": 1, "ignore_eos": True}
    (choice,) = pool.post("/v1/completions", body).json()["choices"]
    logprobs = choice["logprobs"]["token_logprobs"]
    assert len(logprobs) == 6
    assert logprobs[0] is None
    assert None not in logprobs[1:]


def test_a_schema_is_obeyed_through_the_api(llama: tuple[Pool, list[str]]) -> None:
    pool, _ = llama
    schema = {"type": "object", "properties": {"ok": {"enum": ["yes", "no"]}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    answer = pool.openai.chat.completions.create(
        model=next(iter(pool.openai.models.list())).id,
        messages=MESSAGES,
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
    )
    assert answer.choices[0].message.content in ('{"ok": "yes"}', '{"ok": "no"}')


def test_an_id_outside_the_vocabulary_is_a_400(llama: tuple[Pool, list[str]]) -> None:
    pool, _ = llama
    answer = pool.post("/v1/completions", {"prompt": [999_999], "max_tokens": 1})
    assert answer.status_code == 400
    assert "999999" in answer.text
    assert pool.get("/health").status_code == 200


def test_a_seed_is_refused_where_sglang_would_ignore_it(llama: tuple[Pool, list[str]]) -> None:
    pool, _ = llama
    answer = pool.post("/v1/completions", {"prompt": "Hi", "max_tokens": 1, "seed": 3})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "seed"


def test_its_work_is_seen_while_it_runs_and_an_abort_leaves_none(llama: tuple[Pool, list[str]]) -> None:
    pool, _ = llama
    body = {"prompt": "Hi", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with ExitStack() as stack:
        streams = [stack.enter_context(OpenRequest(pool.url, "/v1/completions", body)) for _ in range(8)]
        for stream in streams:
            stream.read_some()
        engine = wait_for(lambda: _busy(pool), 20.0, "a busy engine")
        assert engine["running"] == engine["num_running_reqs"] > 0
        assert engine["max_total_num_tokens"] >= 20_000
        (state,) = pool.get("/server_info").json()["internal_states"]
        assert state["num_used_tokens"] > 0
        wait_for(lambda: pool.metric("gen_throughput") > 0, 20.0, "a throughput")
        assert pool.metric("num_requests_running") > 0
        assert 0 < pool.metric("kv_cache_usage_perc") < 1
    pool.wait_idle()
    wait_for(lambda: pool.engine()["num_used_tokens"] < 200, 10.0, "a free cache")


def _busy(pool: Pool) -> dict[str, Any] | None:
    engine = pool.engine()
    return engine if engine["running"] and engine["num_used_tokens"] else None


def test_embeddings_through_the_official_client(tmp_path: Path) -> None:
    with started(tmp_path / "pool.log", "qwen2", "--is-embedding") as pool:
        wait_ready(pool)
        model = next(iter(pool.openai.models.list())).id
        answer = pool.openai.embeddings.create(model=model, input=["Hello", "Hello", "Something else"])
        one, two, other = [entry.embedding for entry in answer.data]
        assert len(one) == 64
        assert one == pytest.approx(two, abs=2**-8)
        assert one != pytest.approx(other, abs=0.01)
        refused = pool.post("/v1/completions", {"prompt": "Hi"})
        assert refused.status_code == 400


# ---- deaths ----


@pytest.mark.parametrize("victim", ["scheduler", "supervisor"])
def test_whoever_is_killed_every_client_hears_of_it_and_nothing_is_left(tmp_path: Path, victim: str) -> None:
    with started(tmp_path / "pool.log", "llama", *ROOM_FOR_ALL) as pool:
        kill_under_streams(wait_ready(pool), victim)
        if victim == "scheduler":
            assert "sglang::scheduler" in pool.log
            assert "was killed by SIGKILL" in pool.log
            wait_for(lambda: health(pool) == 200, READY_SECONDS, "the next engine")
            assert pool.engine()["epoch"] == 2
            answer = pool.post("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "ignore_eos": True})
            assert answer.json()["usage"]["completion_tokens"] == 3


def test_a_killed_core_is_heard_of_and_takes_sglang_with_it(llama: tuple[Pool, list[str]]) -> None:
    kill_under_streams(llama[0], "core")  # the last test of this pool


def kill_under_streams(pool: Pool, victim: str) -> None:
    core = psutil.Process(pool.engine()["pid"])
    of_the_engine = [core, *core.children(recursive=True)]
    body = {"prompt": "Hi", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with ExitStack() as stack:
        streams = [stack.enter_context(OpenRequest(pool.url, "/v1/completions", body)) for _ in range(STREAMS)]
        for stream in streams:
            stream.read_some()
        victims = {
            "scheduler": next(each for each in of_the_engine if "sglang::scheduler" in " ".join(each.cmdline())),
            "core": core,
            "supervisor": psutil.Process(pool.process.pid),
        }
        began = time.monotonic()
        victims[victim].kill()
        if victim == "supervisor":
            of_the_engine.append(victims[victim])
        else:
            for stream in streams:
                assert error_of(stream.events())
            assert time.monotonic() - began < TOLD_SECONDS
            assert health(pool) in (503, None)
        _, alive = psutil.wait_procs(of_the_engine, timeout=TOLD_SECONDS)
        assert alive == []


@pytest.mark.parametrize("victim", ["core", "supervisor"])
def test_killed_while_sglang_imports_it_leaves_nothing(tmp_path: Path, victim: str) -> None:
    with started(tmp_path / "pool.log", "llama") as pool:
        core = psutil.Process(wait_for(lambda: pool.engine()["pid"], 30.0, "a core"))
        spawned = wait_for(lambda: _spawned(core), READY_SECONDS, "SGLang's processes")
        victims = {"core": core, "supervisor": psutil.Process(pool.process.pid)}
        victims[victim].kill()
        _, alive = psutil.wait_procs([core, *spawned], timeout=TOLD_SECONDS)
        assert alive == []


def _spawned(core: psutil.Process) -> list[psutil.Process]:
    """Processes of SGLang's that have not come to their own first line yet: they have no title of their own."""
    children = core.children(recursive=True)
    return children if any("spawn_main" in " ".join(child.cmdline()) for child in children) else []


def health(pool: Pool) -> int | None:
    """None: it does not answer any more."""
    try:
        return httpx.get(pool.url + "/health", timeout=5.0).status_code
    except httpx.TransportError:
        return None

"""What is done to the engine, or to another's request: through any API server, each call on a connection of its own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.answers import frames
from tests.e2e.refusals import CHAT, COMPLETIONS, GENERATE, error_of
from tests.pool import Pool, running_pool, wait_for
from tests.streams import OpenRequest

pytestmark = pytest.mark.e2e

ENDLESS: dict[str, Any] = {"max_new_tokens": 3000, "ignore_eos": True}


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Three API servers; what is paused here hurts nobody else's test."""
    flags = ("--api-server-count", "3", "--max-model-len", "4096")
    with running_pool(tmp_path_factory.mktemp("admin") / "pool.log", *flags, engine=["--step-ms", "5"]) as one:
        yield one
        assert "Traceback" not in one.log


def ask(pool: Pool, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
    """On a new connection, so by any of the API servers."""
    with httpx.Client(base_url=pool.url, timeout=30.0) as client:
        return client.request(method, path, json=body)


def done(pool: Pool, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    response = ask(pool, "POST", path, body)
    assert response.status_code == 200, response.text
    return response.json()


# ---- aborts ----

ABORTABLE = [
    (GENERATE, {"text": "a", "sampling_params": ENDLESS}),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3000, "ignore_eos": True}),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 3000, "ignore_eos": True}),
    ("/inference/v1/generate", {"token_ids": [65], "sampling_params": {"max_tokens": 3000, "ignore_eos": True}}),
]


@pytest.mark.parametrize(("path", "body"), ABORTABLE)
def test_a_request_is_aborted_by_its_id_from_any_api_server(pool: Pool, path: str, body: dict[str, Any]) -> None:
    name = "request_id" if path == "/inference/v1/generate" else "rid"
    with ThreadPoolExecutor(8) as threads:
        bodies = [{**body, name: f"job-{number}"} for number in range(8)]
        answers = [threads.submit(ask, pool, "POST", path, one) for one in bodies]
        wait_for(lambda: pool.engine()["running"] == 8, what="8 running requests")
        for number in (6, 1, 7, 0, 5, 2, 4):
            done(pool, "/abort_request", {"rid": f"job-{number}"})
        wait_for(lambda: pool.engine()["running"] == 1, what="one request that was not aborted")
        done(pool, "/abort_request", {"rid": "job-3"})
        assert all("abort" in answer.result().text for answer in answers)
    pool.wait_idle()


def test_an_aborted_stream_ends_properly(pool: Pool) -> None:
    body = {"text": ["a", "b"], "rid": ["one", "two"], "sampling_params": ENDLESS, "stream": True}
    with OpenRequest(pool.url, GENERATE, body) as request:
        request.read_some()
        done(pool, "/abort_request", {"rid": "two"})
        wait_for(lambda: pool.engine()["running"] == 1, what="one prompt that goes on")
        done(pool, "/abort_request", {"rid": "one"})
        *events, last = request.events()
    ends = {event["meta_info"]["id"]: event["meta_info"]["finish_reason"] for event in events}
    assert last == "[DONE]"
    assert {name: end["type"] for name, end in ends.items()} == {"one": "abort", "two": "abort"}


def test_everything_is_aborted_at_once(pool: Pool) -> None:
    with ThreadPoolExecutor(6) as threads:
        body = {"text": "a", "sampling_params": ENDLESS}
        answers = [threads.submit(ask, pool, "POST", GENERATE, body) for _ in range(6)]
        wait_for(lambda: pool.engine()["running"] == 6, what="6 running requests")
        assert done(pool, "/abort_request", {"abort_all": True})["aborted"] == 6
        reasons = [answer.result().json()["meta_info"]["finish_reason"]["type"] for answer in answers]
    assert reasons == ["abort"] * 6
    pool.wait_idle()


def test_an_abort_must_say_of_what(pool: Pool) -> None:
    assert error_of(ask(pool, "POST", "/abort_request", {}))["param"] == "rid"
    assert error_of(ask(pool, "POST", "/abort_request", {"rid": "x" * 257}))["param"] == "rid"
    done(pool, "/abort_request", {"rid": "nobody's"})


# ---- the engine's verbs ----


def test_a_paused_engine_says_nothing_until_it_goes_on(pool: Pool) -> None:
    done(pool, "/pause_generation", {"mode": "in_place"})
    try:
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(
                ask, pool, "POST", GENERATE, {"text": "a", "sampling_params": {"max_new_tokens": 3}}
            )
            wait_for(lambda: pool.engine()["waiting"] == 1, what="a waiting request")
            assert "no answer" in ask(pool, "GET", "/health_generate?timeout=0.1").json()["status"]
            assert ask(pool, "GET", "/server_info").json()["internal_states"][0]["is_paused"] is True
            done(pool, "/continue_generation", {})
            assert answer.result().json()["meta_info"]["completion_tokens"] == 3
    finally:
        done(pool, "/continue_generation", {})
    assert ask(pool, "GET", "/health_generate").json() == {"status": "ok"}


def test_a_pause_aborts_unless_it_is_told_otherwise(pool: Pool) -> None:
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask, pool, "POST", GENERATE, {"text": "a", "sampling_params": ENDLESS})
        wait_for(lambda: pool.engine()["running"] == 1, what="a running request")
        assert done(pool, "/pause_generation")["aborted"] == 1
        assert answer.result().json()["meta_info"]["finish_reason"]["type"] == "abort"
    done(pool, "/continue_generation")
    assert error_of(ask(pool, "POST", "/pause_generation", {"mode": "maybe"}))["param"] == "mode"


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_cache_is_flushed_while_nothing_runs(pool: Pool, method: str) -> None:
    pool.wait_idle()
    assert ask(pool, method, "/flush_cache?timeout=60").json() == {"success": True}
    with OpenRequest(pool.url, GENERATE, {"text": "a", "sampling_params": ENDLESS, "stream": True}) as request:
        request.read_some()
        assert "nothing is running" in error_of(ask(pool, method, "/flush_cache"))["message"]
    pool.wait_idle()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/load_lora_adapter", {"lora_name": "a", "lora_path": "b"}),
        ("/unload_lora_adapter", {"lora_name": "a"}),
        ("/start_profile", {"num_steps": 3}),
        ("/start_profile", None),
        ("/stop_profile", None),
    ],
)
def test_what_the_engine_has_not_got_is_a_clear_400(pool: Pool, path: str, body: dict[str, Any] | None) -> None:
    verb = path.removeprefix("/")
    assert error_of(ask(pool, "POST", path, body))["message"] == f"The engine sim cannot do '{verb}'."
    assert error_of(ask(pool, "POST", "/load_lora_adapter", {"lora_name": "a"}))["param"] == "lora_path"


# ---- what it tells of itself ----


def test_gateways_and_load_tools_find_what_they_read(pool: Pool) -> None:
    for path in ("/model_info", "/get_model_info"):
        facts = ask(pool, "GET", path).json()
        assert (facts["model_path"], facts["is_generation"], facts["served_model_name"]) == ("sim", True, "sim")
        assert {"tokenizer_path", "model_type", "architectures", "weight_version"} <= set(facts)
    for path in ("/server_info", "/get_server_info"):
        info = ask(pool, "GET", path).json()
        assert (info["model_path"], info["dp_size"], info["api_server_count"]) == ("sim", 1, 3)
        assert info["internal_states"][0]["last_gen_throughput"] >= 0
        assert info["max_running_requests"] == 256
    (load,) = ask(pool, "GET", "/v1/loads?include=core").json()["loads"]
    assert (load["dp_rank"], load["num_running_reqs"], load["num_waiting_reqs"]) == (0, 0, 0)
    assert load["max_total_num_tokens"] == 256 * 4096
    (old,) = ask(pool, "GET", "/get_load").json()
    assert set(old) == {"dp_rank", "num_reqs", "num_waiting_reqs", "num_tokens"}
    assert ask(pool, "HEAD", "/").status_code == 200


def test_a_probe_goes_through_the_engine(pool: Pool, embed_pool: Pool) -> None:
    before = pool.engine()["output_tokens"]
    assert ask(pool, "GET", "/health_generate").status_code == 200
    assert pool.engine()["output_tokens"] == before + 1
    assert ask(embed_pool, "GET", "/health_generate").status_code == 200
    assert ask(embed_pool, "GET", "/model_info").json()["is_generation"] is False
    for text in ("soon", "nan", "-1", "1e9"):
        assert error_of(ask(pool, "GET", f"/health_generate?timeout={text}"))["param"] == "timeout"


def test_probes_that_had_no_answer_in_time_leave_nothing_in_the_engine(start_pool: Any) -> None:  # sglang#35884
    with start_pool("--api-server-count", "1", engine=["--step-ms", "60000", "--max-running", "1"]) as pool:
        for _ in range(5):
            response = pool.get("/health_generate?timeout=0.1")
            assert response.status_code == 503
            assert "no answer within 0.1 s" in response.json()["status"]
        pool.wait_idle(2)


def test_a_probe_tells_when_the_engine_fails_at_it(start_pool: Any) -> None:
    engine = ["--fault", "error:0:0"]  # the probe's own token
    with start_pool("--api-server-count", "1", engine=engine) as faulty:
        response = ask(faulty, "GET", "/health_generate")
        assert response.status_code == 503
        assert "failed" in response.json()["status"]
        assert ask(faulty, "GET", "/health").status_code == 200


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}, "choices"),
        ({"prompt": "a", "max_tokens": 2}, "choices"),
        ({"text": "a", "sampling_params": {"max_new_tokens": 2}}, "text"),
        ({"token_ids": [65], "sampling_params": {"max_tokens": 2}}, "request_id"),
    ],
)
def test_an_invocation_is_what_its_fields_say(pool: Pool, body: dict[str, Any], key: str) -> None:
    assert key in done(pool, "/invocations", body)
    assert frames(ask(pool, "POST", "/invocations", {**body, "stream": True}))


def test_an_embedding_models_invocations_too(embed_pool: Pool) -> None:
    assert done(embed_pool, "/invocations", {"input": "a"})["object"] == "list"
    assert "results" in done(embed_pool, "/invocations", {"query": "a", "documents": ["b"]})
    assert ask(embed_pool, "POST", "/invocations", {"inputs": "a"}).json()[0]
    assert error_of(ask(embed_pool, "POST", "/invocations", {}))["param"] == "messages"

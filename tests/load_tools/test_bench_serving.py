"""`sglang.bench_serving` against pools of four API servers, the simulated engine's and real models': it counts what it
asked for, and so does the pool."""

from pathlib import Path
from typing import Any

import pytest

from tests.load_tools.tool import bench_serving
from tests.pool import Pool
from tests.real_tokenizers import tokenizer_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

REQUESTS, OUTPUT_TOKENS = 24, 12
LOAD = ("--dataset-name", "random-ids", "--random-range-ratio", "1", "--random-input-len", "24")
LOAD += ("--random-output-len", str(OUTPUT_TOKENS), "--num-prompts", str(REQUESTS), "--max-concurrency", "8")
EXACT = ("--warmup-requests", "0")  # so that the pool's own count is the tool's

GENERATING = [
    pytest.param(
        "sglang", marks=pytest.mark.exercises("sglang.bench_serving", "/generate", "`--backend sglang`; a real model")
    ),
    pytest.param(
        "sglang-oai",
        marks=pytest.mark.exercises("sglang.bench_serving", "/v1/completions", "`--backend sglang-oai`; a real model"),
    ),
    pytest.param(
        "sglang-oai-chat",
        marks=pytest.mark.exercises(
            "sglang.bench_serving", "/v1/chat/completions", "`--backend sglang-oai-chat`; a real model"
        ),
    ),
]


def run(pool: Pool, backend: str, model: str, tokenizer: Path, directory: Path) -> dict[str, Any]:
    """What the tool says, checked as far as it is the same for all backends."""
    assert len(pool.worker_pids()) == 4
    names = ("--backend", backend, "--model", model, "--tokenizer", str(tokenizer))
    said = bench_serving(pool, *names, *LOAD, *EXACT, directory=directory)
    assert said["backend"] == backend
    assert said["completed"] == REQUESTS
    assert said["errors"] == [""] * REQUESTS
    assert "Traceback" not in pool.log
    return said


@pytest.mark.parametrize("backend", GENERATING)
@pytest.mark.parametrize(
    ("fixture", "model"), [("sim_pool", "sim"), pytest.param("smollm2_pool", "smollm2", marks=pytest.mark.model)]
)
def test_every_request_is_answered_with_the_tokens_that_it_asked_for(
    request: pytest.FixtureRequest, fixture: str, model: str, backend: str, tokenizer: Path, tmp_path: Path
) -> None:
    pool: Pool = request.getfixturevalue(fixture)
    before = pool.metric("generation_tokens_total")
    said = run(pool, backend, model, tokenizer, tmp_path)
    assert said["output_lens"] == [OUTPUT_TOKENS] * REQUESTS
    assert said["total_output_tokens"] == REQUESTS * OUTPUT_TOKENS
    # Not only what the tool was promised: what the pool has sent.
    assert pool.metric("generation_tokens_total") - before == REQUESTS * OUTPUT_TOKENS
    assert all(said["generated_texts"])
    assert all(seconds > 0 for seconds in said["ttfts"])


@pytest.mark.parametrize(
    ("fixture", "model"), [("sim_embed_pool", "sim"), pytest.param("minilm_pool", "minilm", marks=pytest.mark.model)]
)
@pytest.mark.exercises("sglang.bench_serving", "/v1/embeddings", "`--backend sglang-embedding`; a real model")
def test_every_text_is_embedded(
    request: pytest.FixtureRequest, fixture: str, model: str, tokenizer: Path, tmp_path: Path
) -> None:
    directory = tokenizer if model == "sim" else tokenizer_directory(model)
    said = run(request.getfixturevalue(fixture), "sglang-embedding", model, directory, tmp_path)
    assert said["total_input_tokens"] > 0
    assert min(said["input_lens"]) > 0

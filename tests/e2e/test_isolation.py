"""Many streams at once are each what they would be alone."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from tests.pool import Pool, running_pool

STREAMS = 64
TIE = 1e-3  # two tokens whose logprobs differ by less are as good as equal: batching changes float results

_WORDS = "river stone cloud lamp garden winter music bridge window coffee forest letter ocean candle market shadow"
PROMPTS = [f"Write one sentence about a {_WORDS.split()[i % 16]} and the number {i}." for i in range(STREAMS)]


@dataclass
class Step:
    """One token of an answer, and what else it could have been."""

    token: str
    logprob: float
    top: dict[str, float]


async def _steps(client: openai.AsyncOpenAI, model: str, prompt: str, tokens: int) -> list[Step]:
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=tokens,
        logprobs=True,
        top_logprobs=5,
        stream=True,
    )
    steps: list[Step] = []
    async for chunk in stream:
        for choice in chunk.choices:
            for entry in (choice.logprobs.content or []) if choice.logprobs else []:
                top = {other.token: other.logprob for other in entry.top_logprobs}
                steps.append(Step(entry.token, entry.logprob, top))
    return steps


async def _alone_and_together(pool: Pool, model: str, tokens: int) -> tuple[list[list[Step]], list[list[Step]]]:
    async with openai.AsyncOpenAI(base_url=pool.url + "/v1", api_key="none", max_retries=0, timeout=300) as client:
        alone = [await _steps(client, model, prompt, tokens) for prompt in PROMPTS]
        together = await asyncio.gather(*[_steps(client, model, prompt, tokens) for prompt in PROMPTS])
    return alone, together


def _served(pool: Pool) -> list[int]:
    return [process["requests"] for process in pool.pool()["processes"]]


def test_64_streams_on_the_sim_equal_their_single_runs(seeded_pool: Pool) -> None:
    before = _served(seeded_pool)
    alone, together = asyncio.run(_alone_and_together(seeded_pool, "sim", 24))
    assert together == alone
    assert len({tuple(step.token for step in steps) for steps in alone}) == STREAMS
    assert all(after > was for after, was in zip(_served(seeded_pool), before, strict=True))


@pytest.fixture(scope="module")
def smollm2_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    output = tmp_path_factory.mktemp("smollm2") / "pool.log"
    with running_pool(output, "--api-server-count", "4", model="smollm2") as pool:
        yield pool


@pytest.mark.model
@pytest.mark.timeout(300)
def test_64_streams_on_smollm2_equal_their_single_runs_up_to_ties(
    smollm2_pool: Pool, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, together = asyncio.run(_alone_and_together(smollm2_pool, "smollm2", 12))
    ties: list[float] = []
    for single, batched in zip(alone, together, strict=True):
        different = next((pair for pair in zip(single, batched, strict=False) if pair[0].token != pair[1].token), None)
        if different is None:
            assert len(single) == len(batched)
            continue
        one, other = different
        gap = abs(one.logprob - one.top.get(other.token, float("-inf")))
        assert gap <= TIE, f"{one} against {other}"
        ties.append(gap)
    record_property("ties", len(ties))
    with capsys.disabled():
        sys.stdout.write(f"\n{STREAMS} streams of SmolLM2: {len(ties)} differ at a tie (gaps {ties})\n")
    assert all(_served(smollm2_pool))

"""The real SGLang's numbers beside transformers', on the same float32 weights; and alone beside in company."""

# pyright: reportMissingImports=false

import asyncio
import math
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine_bridge.wire import Output, Score, Scores, pack_ids
from tests.engine_bench import Bench, bench_of, cosine, ids_of, vector_of
from tests.sglang.shared import Running
from tests.sglang.tiny_models import BERT_FLAGS, load

PROMPTS = 20
NEW_TOKENS = 16
TOGETHER = 64
TIE = 1e-3  # nats: two tokens this near to each other are equally likely
BF16_ROUNDING = 2**-8


def prompts_of(count: int, vocab_size: int) -> list[list[int]]:
    chance = random.Random(7)
    return [[chance.randrange(1000, vocab_size - 1000) for _ in range(chance.randrange(4, 40))] for _ in range(count)]


def on(running: Running, test: Callable[[Bench], Any]) -> Any:
    async def with_bench() -> Any:
        async with bench_of(running.shared()) as bench:
            return await test(bench)

    return running.run(with_bench())


async def greedy(bench: Bench, prompt: Sequence[int]) -> list[Output]:
    request = bench.generate(prompt, max_tokens=NEW_TOKENS, temperature=0.0, ignore_eos=True, logprobs=2)
    return await bench.outputs(request)


def is_tie(outputs: Sequence[Output], at: int, other: int) -> bool:
    """Whether the token at this place was no likelier than the other, by its own logprobs."""
    entries = [entry for output in outputs for entry in output.logprobs or ()]
    return any(token_id == other and abs(entries[at].logprob - logprob) <= TIE for token_id, logprob in entries[at].top)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    return next((at for at, (left, right) in enumerate(zip(one, other, strict=True)) if left != right), None)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
class TestGenerating:
    @pytest.fixture
    def running(self, start: Callable[..., Running], name: str) -> Running:
        return start(name)

    def test_greedy_ids_are_those_of_transformers(
        self, running: Running, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        import torch

        model = load(name)
        ties = 0
        for prompt in prompts_of(PROMPTS, running.capabilities.vocab_size):
            outputs = on(running, lambda bench, prompt=prompt: greedy(bench, prompt))
            with torch.no_grad():
                whole = model.generate(
                    torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None
                )
            theirs = whole[0, len(prompt) :].tolist()
            at = first_difference(ids_of(outputs), theirs)
            if at is not None:
                assert is_tie(outputs, at, theirs[at]), (prompt, at)
                ties += 1
        with capsys.disabled():
            sys.stdout.write(f"\n{name}: {PROMPTS} prompts beside transformers, {ties} ties\n")

    def test_in_company_the_ids_are_those_of_being_alone(
        self, running: Running, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        prompts = prompts_of(TOGETHER, running.capabilities.vocab_size)

        async def both(bench: Bench) -> tuple[list[list[Output]], list[list[Output]]]:
            alone = [await greedy(bench, prompt) for prompt in prompts]
            together = await asyncio.gather(*[greedy(bench, prompt) for prompt in prompts])
            return alone, together

        ties = 0
        for alone, together in zip(*on(running, both), strict=True):
            at = first_difference(ids_of(alone), ids_of(together))
            if at is not None:
                assert is_tie(alone, at, ids_of(together)[at])
                ties += 1
        with capsys.disabled():
            sys.stdout.write(f"\n{name}: {TOGETHER} together beside alone, {ties} ties\n")

    def test_scores_are_the_logprobs_of_the_next_token(self, running: Running, name: str) -> None:
        import torch

        (prompt,) = prompts_of(1, running.capabilities.vocab_size)
        labels = (1000, 2000, 3000)

        async def score(bench: Bench) -> Scores:
            (key,) = bench.submit(Score(bench.next_id(), pack_ids(prompt), labels))
            (end,) = await bench.ends(key)
            assert isinstance(end, Scores), end
            return end

        scores = on(running, score)
        with torch.no_grad():
            logits = load(name)(torch.tensor([prompt])).logits[0, -1]
        theirs = torch.log_softmax(logits, dim=-1)[list(labels)].tolist()
        assert scores.logprobs == pytest.approx(theirs, abs=1e-3)

    def test_logprobs_are_the_models_own_at_any_temperature(self, running: Running, name: str) -> None:
        import torch

        (prompt,) = prompts_of(1, running.capabilities.vocab_size)

        async def sample(bench: Bench) -> list[Output]:
            return await bench.outputs(bench.generate(prompt, max_tokens=1, temperature=0.5, top_k=3, logprobs=3))

        (entry,) = on(running, sample)[0].logprobs
        with torch.no_grad():
            logits = load(name)(torch.tensor([prompt])).logits[0, -1]
        theirs = torch.log_softmax(logits, dim=-1)
        assert dict(entry.top) == pytest.approx(
            {token_id: float(theirs[token_id]) for token_id, _ in entry.top}, abs=1e-3
        )


@pytest.mark.parametrize(
    ("name", "flags"), [("qwen2", ("--is-embedding",)), ("bert", BERT_FLAGS)], ids=["qwen2", "bert"]
)
def test_vectors_are_those_of_transformers(start: Callable[..., Running], name: str, flags: tuple[str, ...]) -> None:
    import torch

    running = start(name, *flags)
    model = load(name)
    model = getattr(model, "model", model)  # of a generating one, what is below its head

    async def embed_all(bench: Bench) -> list[list[float]]:
        prompts = prompts_of(PROMPTS, running.capabilities.vocab_size)
        return [await vector_of(bench, bench.embed(prompt)) for prompt in prompts]

    for prompt, ours in zip(prompts_of(PROMPTS, running.capabilities.vocab_size), on(running, embed_all), strict=True):
        with torch.no_grad():
            hidden = model(torch.tensor([prompt])).last_hidden_state[0]
        pooled = hidden[0 if name == "bert" else -1]
        theirs = (pooled / pooled.norm()).tolist()
        assert ours == pytest.approx(theirs, abs=BF16_ROUNDING)
        assert math.isclose(cosine(ours, theirs), 1, abs_tol=1e-4)

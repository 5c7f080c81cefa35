"""What every engine that scores labels promises, beside the contract of its kind."""

import math

import pytest

from engine_bridge.wire import Output, Score, Scores
from tests.engine_bench import Bench, EngineCase, ids_of
from tests.engine_contract import EngineContract


class ScoringContract(EngineContract):
    """For an engine that can score labels; `GeneratingContract` is for it too."""

    def test_each_label_has_a_logprob_in_the_order_that_was_asked_for(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            labels = sorted(set(case.prompt))
            scores = await scores_of(bench, bench.score(case.prompt, labels))
            assert len(scores) == len(labels)
            assert all(math.isfinite(score) and score <= 0 for score in scores)
            assert sum(map(math.exp, scores)) < 1.001
            backwards = await scores_of(bench, bench.score(case.prompt, labels[::-1]))
            assert backwards == pytest.approx(scores[::-1], abs=0.05)

        self.run(case.make(), check)

    def test_a_label_may_stand_twice(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            label, other = case.prompt[0], case.prompt[-1]
            first, _, again = await scores_of(bench, bench.score(case.prompt, [label, other, label]))
            assert first == again

        self.run(case.make(), check)

    def test_the_whole_vocabulary_can_be_asked_for(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            size = bench.capabilities.vocab_size
            labels = range(0, size, max(1, size // 5000))
            scores = await scores_of(bench, bench.score(case.prompt, labels))
            assert len(scores) == len(labels)
            assert sum(map(math.exp, scores)) < 1.001

        self.run(case.make(), check)

    def test_what_greedy_generation_takes_is_the_likeliest_label(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            request = bench.generate(case.prompt, max_tokens=1, temperature=0.0, ignore_eos=True)
            (token_id,) = await bench.token_ids(request)
            others = sorted({*case.prompt} - {token_id})
            best, *scores = await scores_of(bench, bench.score(case.prompt, [token_id, *others]))
            assert best > max(scores)

        self.run(case.make(), check)

    def test_a_score_is_the_logprob_that_a_generation_tells(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            if bench.capabilities.logprobs < 0:
                pytest.skip("this engine has no logprobs")
            request = bench.generate(case.prompt, max_tokens=1, top_k=1, logprobs=0, ignore_eos=True)
            outputs = await bench.outputs(request)
            (token_id,) = ids_of(outputs)
            logprobs = outputs[0].logprobs
            assert logprobs is not None
            (score,) = await scores_of(bench, bench.score(case.prompt, [token_id]))
            assert score == pytest.approx(logprobs[0].logprob, abs=0.05)

        self.run(case.make(), check)

    def test_scores_and_generations_run_beside_each_other(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            requests = [request for _ in range(6) for request in (bench.score(case.prompt, [1]), bench.request([1]))]
            ends = await bench.ends(*bench.submit(*requests))
            assert [type(end) for end in ends] == [Scores, Output] * 6
            await bench.until_idle()

        self.run(case.make(), check)

    def test_an_aborted_score_is_silent(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            keys = bench.submit(*[bench.score(case.prompt, [1]) for _ in range(8)])
            bench.abort(*keys)
            await bench.until_idle()
            assert not bench.answers
            await scores_of(bench, bench.score(case.prompt, [1]))

        self.run(case.make(), check)


async def scores_of(bench: Bench, request: Score) -> tuple[float, ...]:
    (key,) = bench.submit(request)
    (end,) = await bench.ends(key)
    assert isinstance(end, Scores), end
    return end.logprobs

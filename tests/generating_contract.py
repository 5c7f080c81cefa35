"""What every engine that generates promises, beside the contract of all engines."""

import json

import pytest

from engine_bridge.wire import (
    Failure,
    FailureKind,
    FinishReason,
    unpack_ids,
)
from tests.engine_bench import Bench, EngineCase, ids_of
from tests.engine_contract import EngineContract


class GeneratingContract(EngineContract):
    """For an engine that generates."""

    def test_max_tokens_is_exact(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            for max_tokens in (1, 2, 7):
                outputs = await bench.outputs(bench.generate(case.prompt, max_tokens=max_tokens, ignore_eos=True))
                assert len(ids_of(outputs)) == max_tokens
                assert outputs[-1].finish_reason is FinishReason.LENGTH
                assert outputs[-1].stop_token_id is None

        self.run(case.make(), check)

    def test_ids_are_in_the_vocabulary(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            token_ids = await bench.token_ids(bench.generate(case.prompt, max_tokens=20))
            assert all(0 <= token_id < bench.capabilities.vocab_size for token_id in token_ids)

        self.run(case.make(), check)

    def test_greedy_repeats_itself(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            runs = [
                await bench.token_ids(bench.generate(case.prompt, max_tokens=8, temperature=0.0, ignore_eos=True))
                for _ in range(3)
            ]
            assert runs[1] == runs[2]

        self.run(case.make(), check)

    def test_a_seed_repeats_a_run(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            if not bench.capabilities.seed:
                failure = await bench.failure(bench.generate(case.prompt, max_tokens=12, seed=1))
                assert failure.kind is FailureKind.INVALID
                return
            first = await bench.token_ids(bench.generate(case.prompt, max_tokens=12, seed=1, ignore_eos=True))
            again, other = [
                await bench.token_ids(bench.generate(case.prompt, max_tokens=12, seed=seed, ignore_eos=True))
                for seed in (1, 2)
            ]
            assert first == again
            assert first != other

        self.run(case.make(), check)

    def test_a_stop_token_ends_and_is_named(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            greedy = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
            token_ids = await bench.token_ids(bench.generate(case.prompt, **greedy))
            stop = token_ids[3]
            outputs = await bench.outputs(bench.generate(case.prompt, **greedy, stop_token_ids=(stop,)))
            assert outputs[-1].finish_reason is FinishReason.STOP
            assert outputs[-1].stop_token_id == stop
            assert ids_of(outputs) == token_ids[: token_ids.index(stop) + 1]

        self.run(case.make(), check)

    def test_an_end_token_ends_and_is_named(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            if not bench.capabilities.logit_bias:
                pytest.skip("there is no way to have this engine end")
            eos_token_id = bench.capabilities.eos_token_ids[0]
            bias = ((eos_token_id, 100.0),)
            outputs = await bench.outputs(bench.generate(case.prompt, temperature=0.0, logit_bias=bias))
            assert ids_of(outputs) == [eos_token_id]
            assert outputs[-1].finish_reason is FinishReason.STOP
            assert outputs[-1].stop_token_id == eos_token_id

        self.run(case.make(), check)

    def test_logit_bias_can_force_a_token(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            if not bench.capabilities.logit_bias:
                pytest.skip("this engine has no logit_bias")
            forced = case.prompt[-1]
            request = bench.generate(case.prompt, max_tokens=4, temperature=0.0, logit_bias=((forced, 100.0),))
            assert await bench.token_ids(request) == [forced] * 4

        self.run(case.make(), check)

    def test_min_tokens_holds_the_end_back(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            if not (bench.capabilities.min_tokens and bench.capabilities.logit_bias):
                pytest.skip("this engine has no min_tokens, or there is no way to have it end")
            eos_token_id = bench.capabilities.eos_token_ids[0]
            bias = ((eos_token_id, 100.0),)
            outputs = await bench.outputs(
                bench.generate(case.prompt, temperature=0.0, min_tokens=5, max_tokens=20, logit_bias=bias)
            )
            token_ids = ids_of(outputs)
            assert len(token_ids) == 6
            assert token_ids[-1] == eos_token_id
            assert eos_token_id not in token_ids[:-1]

        self.run(case.make(), check)

    @pytest.mark.parametrize("best", [0, 3])
    def test_each_token_has_its_logprobs(self, case: EngineCase, best: int) -> None:
        async def check(bench: Bench) -> None:
            if bench.capabilities.logprobs < best:
                pytest.skip("this engine has no logprobs")
            outputs = await bench.outputs(bench.generate(case.prompt, max_tokens=6, logprobs=best, ignore_eos=True))
            for output in outputs:
                assert output.logprobs is not None
                assert len(output.logprobs) == len(unpack_ids(output.new_token_ids))
                for entry in output.logprobs:
                    values = [logprob for _, logprob in entry.top]
                    assert len(values) == best
                    assert values == sorted(values, reverse=True)
                    assert entry.logprob <= 0

        self.run(case.make(), check)

    def test_tokens_by_id_have_the_logprobs_that_they_have_among_the_best(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            if not bench.capabilities.token_ids_logprob:
                pytest.skip("this engine has no token_ids_logprob")
            params = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True, "logprobs": 3, "prompt_logprobs": 3}
            of_prompt = (await bench.outputs(bench.generate(case.prompt, **params)))[0].prompt_logprobs or (None,)
            found = of_prompt[-1]
            assert found is not None
            asked = tuple(token_id for token_id, _ in reversed(found.top))
            outputs = await bench.outputs(bench.generate(case.prompt, **params, token_ids_logprob=asked))
            scored = [entry for output in outputs for entry in output.logprobs or ()]
            scored += [entry for entry in outputs[0].prompt_logprobs or () if entry is not None]
            assert len(scored) == 4 + len(case.prompt) - 1
            for entry in scored:
                values, best = dict(zip(asked, entry.asked, strict=True)), dict(entry.top)
                for token_id in values.keys() & best.keys():
                    assert values[token_id] == pytest.approx(best[token_id], abs=1e-3)
            assert dict(zip(asked, scored[-1].asked, strict=True)).keys() <= dict(scored[-1].top).keys()

        self.run(case.make(), check)

    def test_logprobs_come_only_when_asked_for(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            outputs = await bench.outputs(bench.generate(case.prompt, max_tokens=3))
            assert [output.logprobs for output in outputs] == [None] * len(outputs)

        self.run(case.make(), check)

    def test_prompt_logprobs_cover_the_prompt(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            if not bench.capabilities.prompt_logprobs:
                pytest.skip("this engine has no prompt_logprobs")
            outputs = await bench.outputs(bench.generate(case.prompt, max_tokens=2, prompt_logprobs=1))
            first = outputs[0].prompt_logprobs
            assert first is not None
            assert len(first) == len(case.prompt)
            assert first[0] is None
            assert None not in first[1:]
            assert [output.prompt_logprobs for output in outputs[1:]] == [None] * (len(outputs) - 1)

        self.run(case.make(), check)

    def test_a_schema_is_obeyed(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            if not bench.capabilities.json_schema or case.decode is None:
                pytest.skip("this engine has no json_schema")
            schema = {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}, "size": {"type": "integer", "maximum": 99}},
                "required": ["city", "size"],
                "additionalProperties": False,
            }
            outputs = await bench.outputs(bench.generate(case.prompt, max_tokens=80, json_schema=json.dumps(schema)))
            assert outputs[-1].finish_reason is FinishReason.STOP
            answer = json.loads(case.decode(ids_of(outputs)[:-1]))
            assert answer["city"] in ("Paris", "Rome")
            assert isinstance(answer["size"], int)

        self.run(case.make(), check)

    @pytest.mark.parametrize(
        ("capability", "broken"),
        [
            ("json_schema", {"json_schema": '{"type": "nonsense"}'}),
            ("json_schema", {"json_schema": '{"type": '}),
            ("grammar", {"grammar": "root ::= ((("}),
            ("grammar", {"grammar": "root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000}),
        ],
    )
    def test_a_broken_constraint_fails_alone(self, case: EngineCase, capability: str, broken: dict[str, str]) -> None:
        async def check(bench: Bench) -> None:
            if not getattr(bench.capabilities, capability):
                pytest.skip(f"this engine has no {capability}")
            neighbour = bench.submit(bench.request(case.prompt))
            failure = await bench.failure(bench.generate(case.prompt, **broken))
            assert failure.kind is FailureKind.INVALID
            ends = await bench.ends(*neighbour, *bench.submit(bench.request(case.prompt)))
            assert not [end for end in ends if isinstance(end, Failure)]

        self.run(case.make(), check)

    def test_a_generation_ends_at_the_context(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            most = bench.capabilities.max_model_len
            length = most - 5
            long = [case.prompt[index % len(case.prompt)] for index in range(length)]
            outputs = await bench.outputs(bench.generate(long, max_tokens=50, ignore_eos=True))
            assert len(ids_of(outputs)) <= 5
            assert outputs[-1].finish_reason is FinishReason.LENGTH

        self.run(case.make(), check)

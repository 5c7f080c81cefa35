"""What every engine promises, as tests: subclass EngineContract (and one of the two below it) and say which engine.

Nothing here knows an engine. What an engine can do is asked of its capabilities; what is particular to its model (a
prompt, how to read ids) is in its EngineCase.
"""

import array
import asyncio
import json
import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from engine_bridge.engines import Answer, Engine, EngineRefusal, Key
from engine_bridge.wire import (
    Capabilities,
    Embed,
    Embedding,
    Failure,
    FailureKind,
    FinishReason,
    Generate,
    Output,
    Request,
    SamplingParams,
    Score,
    pack_ids,
    unpack_ids,
)

DEADLINE_SECONDS = 30


@dataclass(frozen=True)
class EngineCase:
    """An engine under test."""

    make: Callable[[], Engine]
    make_crowded: Callable[[], Engine]
    """The same, but of 100 requests submitted at once its queue must refuse some."""
    prompt: tuple[int, ...]
    decode: Callable[[Sequence[int]], str] | None = None
    """Token ids as text; None if the engine's ids mean nothing."""


class Bench:
    """A started engine, and all that it has emitted. Every emit is checked against the promise of one end."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.capabilities = Capabilities(task="", max_model_len=0, vocab_size=0)
        self.answers: dict[Key, list[Answer]] = {}
        self.violations: list[str] = []
        self._silent: set[Key] = set()
        self._news = asyncio.Event()
        self._last_id = 0

    def emit(self, answers: Sequence[tuple[Key, Answer]]) -> None:
        for key, answer in answers:
            if key in self._silent:
                self.violations.append(f"{answer} came after the end or abort of {key}")
            if answer.request_id != key[1]:
                self.violations.append(f"{answer} for {key}")
            self.answers.setdefault(key, []).append(answer)
            if is_end(answer):
                self._silent.add(key)
        self._news.set()

    def submit(self, *requests: Request, server: bytes = b"api-0.1") -> list[Key]:
        keys = [(server, request.request_id) for request in requests]
        self.engine.submit(list(zip(keys, requests, strict=True)))
        return keys

    def abort(self, *keys: Key) -> None:
        self.engine.abort(keys)
        self._silent.update(keys)

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def generate(self, prompt: Sequence[int], **params: object) -> Generate:
        return Generate(self.next_id(), pack_ids(tuple(prompt)), SamplingParams(**params))  # type: ignore[arg-type]  # a test's own keywords

    def embed(self, prompt: Sequence[int], *, dimensions: int | None = None) -> Embed:
        return Embed(self.next_id(), pack_ids(tuple(prompt)), dimensions)

    def score(self, prompt: Sequence[int], labels: Sequence[int]) -> Score:
        return Score(self.next_id(), pack_ids(tuple(prompt)), tuple(labels))

    def request(self, prompt: Sequence[int]) -> Request:
        """One of the engine's own kind; a generation is short, and its length is known."""
        if self.capabilities.task == "embed":
            return self.embed(prompt)
        return self.generate(prompt, max_tokens=3, temperature=0.0, ignore_eos=True)

    def long_request(self, prompt: Sequence[int]) -> Request:
        """One that is still running a while from now, if the engine's kind allows that."""
        if self.capabilities.task == "embed":
            return self.embed(prompt)
        return self.generate(prompt, max_tokens=self.capabilities.max_model_len - len(prompt), ignore_eos=True)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                self._news.clear()
                with suppress(TimeoutError):  # counts change without news, so look now and then
                    async with asyncio.timeout(0.01):
                        await self._news.wait()

    async def until_idle(self) -> None:
        await self.until(lambda: self.engine.counts() == (0, 0))

    async def ends(self, *keys: Key) -> list[Answer]:
        await self.until(lambda: all(key in self._silent for key in keys))
        return [self.answers[key][-1] for key in keys]

    async def outputs(self, request: Generate) -> list[Output]:
        (key,) = self.submit(request)
        await self.ends(key)
        outputs = [answer for answer in self.answers[key] if isinstance(answer, Output)]
        assert len(outputs) == len(self.answers[key]), self.answers[key]
        return outputs

    async def token_ids(self, request: Generate) -> list[int]:
        return ids_of(await self.outputs(request))

    async def failure(self, request: Request) -> Failure:
        (key,) = self.submit(request)
        (end,) = await self.ends(key)
        assert isinstance(end, Failure), end
        return end


def is_end(answer: Answer) -> bool:
    return not isinstance(answer, Output) or answer.finish_reason is not None


def ids_of(outputs: Sequence[Output]) -> list[int]:
    return [token_id for output in outputs for token_id in unpack_ids(output.new_token_ids)]


@asynccontextmanager
async def bench_of(engine: Engine) -> AsyncGenerator[Bench]:
    bench = Bench(engine)
    bench.capabilities = await engine.start(bench.emit)
    try:
        yield bench
    finally:
        await asyncio.wait_for(engine.close(), DEADLINE_SECONDS)
    assert not bench.violations


class EngineContract:
    """For an engine of any kind. Subclasses give `case` as a fixture."""

    @pytest.fixture
    def case(self) -> EngineCase:
        raise NotImplementedError("the subclass says which engine")

    def run(self, engine: Engine, test: Callable[[Bench], Awaitable[None]]) -> None:
        async def with_engine() -> None:
            async with bench_of(engine) as bench:
                await test(bench)

        asyncio.run(with_engine())

    def test_capabilities_say_what_it_is(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            capabilities = bench.capabilities
            assert capabilities.task in ("generate", "embed")
            assert capabilities.max_model_len > 0
            assert capabilities.vocab_size > max(case.prompt)
            assert all(0 <= token_id < capabilities.vocab_size for token_id in capabilities.eos_token_ids)
            assert (capabilities.dimensions > 0) == (capabilities.task == "embed")

        self.run(case.make(), check)

    def test_every_request_ends_once(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            keys = bench.submit(*[bench.request(case.prompt) for _ in range(12)])
            keys += bench.submit(*[bench.request(case.prompt) for _ in range(3)], server=b"api-1.2")
            ends = await bench.ends(*keys)
            assert not [end for end in ends if isinstance(end, Failure)]
            await bench.until_idle()

        self.run(case.make(), check)

    def test_the_same_id_of_two_servers_is_two_requests(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            request = bench.long_request(case.prompt)
            first, second = bench.submit(request) + bench.submit(request, server=b"api-1.2")
            bench.abort(first)
            if bench.capabilities.task == "generate":
                await bench.until(lambda: second in bench.answers)
                bench.abort(second)
            else:
                await bench.ends(second)
            await bench.until_idle()
            assert first not in bench.answers

        self.run(case.make(), check)

    def test_an_aborted_running_request_is_silent(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            (key,) = bench.submit(bench.long_request(case.prompt))
            if bench.capabilities.task == "generate":
                await bench.until(lambda: key in bench.answers)
            else:
                await bench.until(lambda: bench.engine.counts()[0] > 0 or key in bench.answers)
            bench.abort(key)
            await bench.until_idle()
            await bench.ends(*bench.submit(bench.request(case.prompt)))

        self.run(case.make(), check)

    def test_a_request_can_be_aborted_in_its_prefill(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            length = min(bench.capabilities.max_model_len - 8, 3000)
            long = [case.prompt[index % len(case.prompt)] for index in range(length)]
            (key,) = bench.submit(bench.request(long))
            await bench.until(lambda: bench.engine.counts()[0] > 0 or key in bench.answers)
            bench.abort(key)
            await bench.until_idle()

        self.run(case.make(), check)

    def test_aborted_waiting_requests_are_silent(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            keys = bench.submit(*[bench.long_request(case.prompt) for _ in range(64)])
            bench.abort(*keys)
            assert bench.engine.counts()[1] == 0
            await bench.until_idle()
            assert not bench.answers
            await bench.ends(*bench.submit(bench.request(case.prompt)))

        self.run(case.make(), check)

    def test_unknown_aborts_are_ignored(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            (key,) = bench.submit(bench.request(case.prompt))
            bench.engine.abort([(b"api-0.1", 99), (b"nobody", 1)])
            await bench.ends(key)
            bench.engine.abort([key])
            await bench.until_idle()

        self.run(case.make(), check)

    def test_abandoned_requests_leave_nothing(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            chance = random.Random(1)
            for _ in range(20):
                keys = bench.submit(*[bench.long_request(case.prompt) for _ in range(10)])
                until = asyncio.get_running_loop().time() + chance.random() * 0.02
                await bench.until(lambda until=until: asyncio.get_running_loop().time() >= until)
                chance.shuffle(keys)
                for key in keys:
                    bench.abort(key)
            await bench.until_idle()
            await bench.ends(*bench.submit(bench.request(case.prompt)))

        self.run(case.make(), check)

    def test_a_full_queue_refuses_and_goes_on(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            ends = await bench.ends(*bench.submit(*[bench.request(case.prompt) for _ in range(100)]))
            refused = [end for end in ends if isinstance(end, Failure)]
            assert {end.kind for end in refused} == {FailureKind.OVERLOADED}
            assert 0 < len(refused) < 100
            await bench.until_idle()
            (end,) = await bench.ends(*bench.submit(bench.request(case.prompt)))
            assert not isinstance(end, Failure)

        self.run(case.make_crowded(), check)

    def test_what_it_does_not_claim_to_do_as_a_whole_it_refuses(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            with pytest.raises(EngineRefusal):
                await bench.engine.admin("no_such_verb", {})

        self.run(case.make(), check)

    def test_pausing_and_going_on_loses_nothing(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            if not {"pause_generation", "continue_generation"} <= set(bench.capabilities.admin):
                pytest.skip("this engine cannot pause")
            before = bench.submit(bench.request(case.prompt))
            await bench.engine.admin("pause_generation", {"mode": "in_place"})
            await bench.engine.admin("pause_generation", {"mode": "in_place"})
            keys = [*before, *bench.submit(bench.request(case.prompt))]
            await bench.engine.admin("continue_generation", {})
            ends = await bench.ends(*keys)
            assert not [end for end in ends if isinstance(end, Failure)]

        self.run(case.make(), check)

    def test_its_state_is_what_json_can_hold(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            if "internal_state" not in bench.capabilities.admin:
                pytest.skip("this engine tells nothing of its inside")
            await bench.ends(*bench.submit(bench.request(case.prompt)))
            state = await bench.engine.admin("internal_state", {})
            assert json.loads(json.dumps(state)) == state

        self.run(case.make(), check)

    def test_the_cache_can_be_flushed_when_nothing_runs(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            if "flush_cache" not in bench.capabilities.admin:
                pytest.skip("this engine has no cache to flush")
            await bench.ends(*bench.submit(bench.request(case.prompt)))
            await bench.until_idle()
            await bench.engine.admin("flush_cache", {})
            await bench.ends(*bench.submit(bench.request(case.prompt)))

        self.run(case.make(), check)

    def test_closing_ends_what_runs(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            bench.submit(*[bench.long_request(case.prompt) for _ in range(20)])
            await bench.until(lambda: bench.engine.counts()[0] > 0 or bool(bench.answers))

        self.run(case.make(), check)


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
                pytest.skip("no logit_bias")
            forced = case.prompt[-1]
            request = bench.generate(case.prompt, max_tokens=4, temperature=0.0, logit_bias=((forced, 100.0),))
            assert await bench.token_ids(request) == [forced] * 4

        self.run(case.make(), check)

    def test_min_tokens_holds_the_end_back(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            if not (bench.capabilities.min_tokens and bench.capabilities.logit_bias):
                pytest.skip("no min_tokens, or no way to have this engine end")
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
                pytest.skip("no logprobs")
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
                pytest.skip("no token_ids_logprob")
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
                pytest.skip("no prompt_logprobs")
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
                pytest.skip("no json_schema")
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
                pytest.skip(f"no {capability}")
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


class EmbeddingContract(EngineContract):
    """For an engine that embeds."""

    def test_a_vector_is_of_the_size_and_length_promised(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            vector = await vector_of(bench, bench.embed(case.prompt))
            assert len(vector) == bench.capabilities.dimensions
            assert math.isclose(math.hypot(*vector), 1, rel_tol=1e-4)

        self.run(case.make(), check)

    def test_company_does_not_change_a_vector(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            alone = await vector_of(bench, bench.embed(case.prompt))
            lengths = [1 + 3 * index % len(case.prompt) for index in range(40)]
            requests = [bench.embed(case.prompt[:length]) for length in lengths] + [bench.embed(case.prompt)]
            (*_, key) = bench.submit(*requests)
            (end,) = await bench.ends(key)
            assert isinstance(end, Embedding)
            in_company = array.array("f", end.vector).tolist()
            assert cosine(alone, in_company) > 0.9999

        self.run(case.make(), check)

    def test_dimensions_cut_and_normalise_again(self, case: EngineCase) -> None:
        async def check(bench: Bench) -> None:
            request = bench.embed(case.prompt, dimensions=8)
            if not bench.capabilities.matryoshka:
                assert (await bench.failure(request)).kind is FailureKind.INVALID
                return
            vector = await vector_of(bench, request)
            assert len(vector) == 8
            assert math.isclose(math.hypot(*vector), 1, rel_tol=1e-4)

        self.run(case.make(), check)


async def vector_of(bench: Bench, request: Embed) -> list[float]:
    (key,) = bench.submit(request)
    (end,) = await bench.ends(key)
    assert isinstance(end, Embedding), end
    return array.array("f", end.vector).tolist()


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Of vectors of length 1."""
    return sum(left * right for left, right in zip(one, other, strict=True))

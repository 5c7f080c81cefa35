"""What every engine promises, as tests: subclass EngineContract, or the contract of its kind, and say which engine.

Nothing here knows an engine. What an engine can do is asked of its capabilities; what is particular to its model (a
prompt, how to read ids) is in its EngineCase.
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable

import pytest

from engine_bridge.engines import Engine, EngineRefusal
from engine_bridge.wire import (
    Failure,
    FailureKind,
)
from tests.engine_bench import Bench, EngineCase, bench_of


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

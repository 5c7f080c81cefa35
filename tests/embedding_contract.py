"""What every engine that embeds promises, beside the contract of all engines."""

import array
import math

from engine_bridge.wire import (
    Embedding,
    FailureKind,
)
from tests.engine_bench import Bench, EngineCase, cosine, vector_of
from tests.engine_contract import EngineContract


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

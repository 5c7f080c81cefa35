"""The engines' contract, kept by the real SGLang with a Qwen2."""

from collections.abc import Callable

import pytest

from tests.engine_contract import EngineCase, GeneratingContract
from tests.real_tokenizers import tokenizer_json
from tests.sglang.shared import OnSharedEngine, Running


@pytest.fixture(scope="module")
def running(start: Callable[..., Running]) -> Running:
    return start("qwen2")


@pytest.fixture(scope="module")
def crowded(start: Callable[..., Running]) -> Running:
    return start("qwen2", "--max-running-requests", "2", "--max-queued-requests", "3")


class TestQwen2(OnSharedEngine, GeneratingContract):
    @pytest.fixture
    def case(self, running: Running, request: pytest.FixtureRequest) -> EngineCase:
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json("qwen3"))
        return EngineCase(
            make=running.shared,
            make_crowded=lambda: request.getfixturevalue("crowded").shared(),
            prompt=tuple(tokenizer.encode("The capital of France is").ids),
            decode=lambda ids: tokenizer.decode(list(ids)),
        )

"""The engines' contract, kept by the real SGLang with a Llama."""

from collections.abc import Callable

import pytest
import tokenizers

from tests.engine_bench import EngineCase
from tests.generating_contract import GeneratingContract
from tests.real_tokenizers import tokenizer_json
from tests.scoring_contract import ScoringContract
from tests.sglang.shared import OnSharedEngine, Running


class TestLlama(OnSharedEngine, ScoringContract, GeneratingContract):
    @pytest.fixture
    def case(self, start: Callable[..., Running], start_crowded: Callable[..., Running]) -> EngineCase:
        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json("mistral"))
        return EngineCase(
            make=start("llama").shared,
            make_crowded=lambda: start_crowded("llama").shared(),
            prompt=tuple(tokenizer.encode("The capital of France is").ids),
            decode=lambda ids: tokenizer.decode(list(ids)),
        )

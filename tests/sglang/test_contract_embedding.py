"""The engines' contract, kept by the real SGLang with embedding models: a decoder and an encoder."""

from collections.abc import Callable

import pytest
import tokenizers

from tests.engine_contract import EmbeddingContract, EngineCase
from tests.real_tokenizers import tokenizer_json
from tests.sglang.shared import OnSharedEngine, Running
from tests.sglang.tiny_models import BERT_FLAGS

CROWDED = ("--max-running-requests", "2", "--max-queued-requests", "3")


def case_of(running: Running, crowded: Callable[[], Running], tokenizer: str) -> EngineCase:
    ids = tokenizers.Tokenizer.from_str(tokenizer_json(tokenizer)).encode("The capital of France is Paris.").ids
    return EngineCase(make=running.shared, make_crowded=lambda: crowded().shared(), prompt=tuple(ids))


class TestQwen2(OnSharedEngine, EmbeddingContract):
    @pytest.fixture(scope="class")
    def running(self, start: Callable[..., Running]) -> Running:
        return start("qwen2", "--is-embedding")

    @pytest.fixture(scope="class")
    def crowded(self, start: Callable[..., Running]) -> Running:
        return start("qwen2", "--is-embedding", *CROWDED)

    @pytest.fixture
    def case(self, running: Running, request: pytest.FixtureRequest) -> EngineCase:
        return case_of(running, lambda: request.getfixturevalue("crowded"), "qwen3")


class TestBert(OnSharedEngine, EmbeddingContract):
    @pytest.fixture(scope="class")
    def running(self, start: Callable[..., Running]) -> Running:
        return start("bert", *BERT_FLAGS)

    @pytest.fixture(scope="class")
    def crowded(self, start: Callable[..., Running]) -> Running:
        return start("bert", *BERT_FLAGS, *CROWDED)

    @pytest.fixture
    def case(self, running: Running, request: pytest.FixtureRequest) -> EngineCase:
        return case_of(running, lambda: request.getfixturevalue("crowded"), "minilm")

"""The engines' contract, kept by the real SGLang with embedding models: a decoder and an encoder."""

from collections.abc import Callable

import pytest
import tokenizers

from tests.embedding_contract import EmbeddingContract
from tests.engine_bench import EngineCase
from tests.real_tokenizers import tokenizer_json
from tests.sglang.shared import OnSharedEngine, Running
from tests.sglang.tiny_models import BERT_FLAGS


def case_of(running: Running, crowded: Callable[[], Running], tokenizer: str) -> EngineCase:
    ids = tokenizers.Tokenizer.from_str(tokenizer_json(tokenizer)).encode("The capital of France is Paris.").ids
    return EngineCase(make=running.shared, make_crowded=lambda: crowded().shared(), prompt=tuple(ids))


class TestQwen2(OnSharedEngine, EmbeddingContract):
    @pytest.fixture
    def case(self, start: Callable[..., Running], start_crowded: Callable[..., Running]) -> EngineCase:
        words = ("qwen2", "--is-embedding")
        return case_of(start(*words), lambda: start_crowded(*words), "qwen3")


class TestBert(OnSharedEngine, EmbeddingContract):
    @pytest.fixture
    def case(self, start: Callable[..., Running], start_crowded: Callable[..., Running]) -> EngineCase:
        words = ("bert", *BERT_FLAGS)
        return case_of(start(*words), lambda: start_crowded(*words), "minilm")

"""A tokenizer and an engine that are, may be, or cannot be of one model."""

import pytest

from apiserver.fit import Vocabulary, doubts, misfit
from engine_bridge.wire import Capabilities


def engine(vocab_size: int, *eos_token_ids: int, max_model_len: int = 4096) -> Capabilities:
    return Capabilities("generate", max_model_len, vocab_size, eos_token_ids)


def said(vocabulary: Vocabulary, capabilities: Capabilities, max_model_len: int | None = None) -> str:
    return "\n".join(doubts(vocabulary, capabilities, max_model_len))


@pytest.mark.parametrize(
    ("size", "added", "vocab_size"),
    [
        (151_669, range(151_643, 151_669), 151_936),  # Qwen3
        (50_295, range(50_257, 50_295), 51_200),  # phi-2
        (30_522, [0, 100, 101], 30_522),  # BERT
        (259, [256, 257, 258], 259),
    ],
)
def test_models_that_round_their_vocabulary_up_fit(size: int, added: range, vocab_size: int) -> None:
    vocabulary = Vocabulary.of(size, added, (size - 1,))
    assert misfit(vocabulary, engine(vocab_size, size - 1, 7)) is None
    assert said(vocabulary, engine(vocab_size, size - 1, 7)) == ""


def test_an_engine_that_does_not_tell_its_vocabulary_is_believed() -> None:
    vocabulary = Vocabulary.of(1000, [], ())
    assert misfit(vocabulary, engine(0)) is None
    assert said(vocabulary, engine(0)) == ""


def test_ids_that_the_engine_has_not_got_do_not_fit() -> None:
    reason = misfit(Vocabulary.of(49_152, range(17), (2,)), engine(30_522))
    assert reason is not None
    assert "up to 49151, and the engine's model takes 0 to 30521" in reason
    assert "--tokenizer" in reason


def test_a_special_token_more_than_the_model_has_is_a_doubt() -> None:
    gemma = Vocabulary.of(262_145, [0, 1, 262_144], (1,))
    assert gemma.ordinary_size == 262_144
    assert misfit(gemma, engine(262_144, 1)) is None
    assert "go up to 262144" in said(gemma, engine(262_144, 1))
    assert "are refused" in said(gemma, engine(262_144, 1))


def test_a_much_larger_model_other_ends_and_a_shorter_context_are_doubts() -> None:
    vocabulary = Vocabulary.of(49_152, [], (2, 3))
    assert "has 151936 ids and the tokenizer here makes 49152" in said(vocabulary, engine(151_936, 2))
    assert "ends with the ids 7, 8 and the tokenizer here names 2, 3" in said(vocabulary, engine(49_152, 7, 8))
    assert said(vocabulary, engine(49_152, 3), 4096) == ""
    assert "--max-model-len is 8192, and the engine's 4096, which counts" in said(vocabulary, engine(49_152, 3), 8192)


def test_a_tokenizer_of_added_tokens_alone_is_no_endless_search() -> None:
    assert Vocabulary.of(3, [0, 1, 2], ()).ordinary_size == 0

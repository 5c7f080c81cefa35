"""The onnx engine under the engines' contract, and what is its own: batches, pooling, texts that fail."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from apiserver import models
from engine_bridge.engines import EngineError
from engine_bridge.engines.onnx import OnnxEngine, OnnxOptions, choose_batch, create
from engine_bridge.wire import Embedding, Failure, FailureKind
from tests.embedding_contract import EmbeddingContract
from tests.engine_bench import Bench, EngineCase, bench_of, cosine, vector_of

# "[CLS] a man is eating food . [SEP]", "[CLS] a man is eating bread . [SEP]", "[CLS] the stock market fell . [SEP]"
FOOD = (101, 1037, 2158, 2003, 5983, 2833, 1012, 102)
BREAD = (101, 1037, 2158, 2003, 5983, 7852, 1012, 102)
STOCKS = (101, 1996, 4518, 3006, 3062, 1012, 102)


@pytest.fixture(scope="session")
def onnx() -> Path:
    return models.fetch("minilm")


def with_engine(engine: OnnxEngine, check: Callable[[Bench], Awaitable[None]]) -> None:
    async def run() -> None:
        async with bench_of(engine) as bench:
            await check(bench)

    asyncio.run(run())


@pytest.mark.model
class TestContract(EmbeddingContract):
    @pytest.fixture
    def case(self, onnx: Path) -> EngineCase:
        return EngineCase(
            make=lambda: OnnxEngine(onnx, options=OnnxOptions(threads=1)),
            make_crowded=lambda: OnnxEngine(onnx, options=OnnxOptions(threads=1, max_waiting=10)),
            prompt=FOOD,
        )


@pytest.mark.model
class TestCuttable(EmbeddingContract):
    @pytest.fixture
    def case(self, onnx: Path) -> EngineCase:
        options = OnnxOptions(threads=1, matryoshka=True)
        return EngineCase(
            make=lambda: OnnxEngine(onnx, options=options),
            make_crowded=lambda: OnnxEngine(onnx, options=OnnxOptions(threads=1, matryoshka=True, max_waiting=10)),
            prompt=BREAD,
        )


@pytest.mark.model
def test_what_means_the_same_is_near(onnx: Path) -> None:
    async def check(bench: Bench) -> None:
        food, bread, stocks = [await vector_of(bench, bench.embed(text)) for text in (FOOD, BREAD, STOCKS)]
        assert cosine(food, bread) > 0.7
        assert cosine(food, stocks) < 0.3

    with_engine(OnnxEngine(onnx, options=OnnxOptions(threads=1)), check)


@pytest.mark.model
def test_what_it_cannot_do_is_invalid(onnx: Path) -> None:
    async def check(bench: Bench) -> None:
        texts = ([], [-1], [30_522], [5] * 513)
        requests = [*(bench.embed(text) for text in texts), bench.generate(FOOD), bench.embed(FOOD, dimensions=10)]
        for request in requests:
            assert (await bench.failure(request)).kind is FailureKind.INVALID

    with_engine(OnnxEngine(onnx, options=OnnxOptions(threads=1)), check)


@pytest.mark.model
@pytest.mark.parametrize("pooling", ["cls", "last"])
def test_pooling_can_be_chosen(onnx: Path, pooling: str) -> None:
    async def check(bench: Bench) -> None:
        (first, second) = bench.submit(bench.embed(FOOD), bench.embed(FOOD[:3]))
        ends = await bench.ends(first, second)
        assert all(isinstance(end, Embedding) for end in ends)

    with_engine(OnnxEngine(onnx, options=OnnxOptions(threads=1, pooling=pooling)), check)


@pytest.mark.model
def test_a_text_that_fails_does_so_alone(onnx: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(bench: Bench) -> None:
        ends = await bench.ends(*bench.submit(bench.embed(FOOD), bench.embed(STOCKS), bench.embed(BREAD)))
        assert [type(end) for end in ends] == [Embedding, Failure, Embedding]

    from engine_bridge.engines.onnx_model import OnnxModel

    embed = OnnxModel.embed

    def failing(self: OnnxModel, texts: list[bytes]) -> object:
        if len(STOCKS) * 4 in {len(text) for text in texts}:
            raise RuntimeError("a text of this length")
        return embed(self, texts)

    monkeypatch.setattr(OnnxModel, "embed", failing)
    with_engine(OnnxEngine(onnx, options=OnnxOptions(threads=1)), check)


@pytest.mark.model
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_vector_that_is_no_number_is_a_failure(onnx: Path, monkeypatch: pytest.MonkeyPatch, bad: float) -> None:
    async def check(bench: Bench) -> None:
        failure = await bench.failure(bench.embed(FOOD))
        assert failure.kind is FailureKind.INTERNAL
        assert "NaN" in failure.message

    from engine_bridge.engines import onnx_model

    def pool(*_: object) -> object:
        return np.array([[bad, 1.0, 2.0]], np.float32)

    monkeypatch.setattr(onnx_model, "_pool", pool)
    with_engine(OnnxEngine(onnx, options=OnnxOptions(threads=1)), check)


@pytest.mark.parametrize(
    ("lengths", "batch"),
    [
        ([16], [0]),
        ([16, 16, 16], [0, 1, 2]),
        ([16, 400, 17, 15], [0, 2, 3]),  # the long one would be padding for the others
        ([400, 16, 16], [0]),
        ([600, 16], [0]),  # longer than a batch may be, and alone
        ([100] * 9, [0, 1, 2, 3, 4]),  # 512 tokens
    ],
)
def test_a_batch_is_of_similar_lengths(lengths: list[int], batch: list[int]) -> None:
    assert choose_batch(lengths, max_tokens=512) == batch


def test_the_oldest_is_always_served() -> None:
    assert choose_batch([300, 5, 5, 5, 5], max_tokens=512)[0] == 0


def test_a_file_that_is_no_model_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("hello, this is not a model")
    for name in ("text", "none"):
        engine = create(str(tmp_path / f"{name}.onnx"), ["--pooling", "mean"])
        with pytest.raises(EngineError, match="cannot load") as raised:
            asyncio.run(engine.start(lambda answers: None))
        assert "\n" not in str(raised.value)

"""llama.cpp under the engines' contract, and what is its own: lost ids, refused fields, the process it lives in."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from apiserver import models
from engine_bridge.engines import EngineError
from engine_bridge.engines.gguf import GgufHeader
from engine_bridge.engines.llamacpp import LlamaCppEngine, create
from engine_bridge.engines.llamacpp_server import LlamaCppOptions
from engine_bridge.wire import FailureKind, FinishReason
from tests.engine_bench import Bench, EngineCase, bench_of, ids_of
from tests.generating_contract import GeneratingContract
from tests.scoring_contract import ScoringContract, scores_of

# <|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n
QUESTION = (1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198)


@pytest.fixture(scope="session")
def gguf() -> Path:
    return models.fetch("smollm2")


@pytest.fixture(scope="session")
def header(gguf: Path) -> GgufHeader:
    return GgufHeader(gguf)


def engine_of(gguf: Path, **options: int) -> LlamaCppEngine:
    return LlamaCppEngine(gguf, options=LlamaCppOptions(**{"max_model_len": 1024, "threads": 1, **options}))


def text_of(header: GgufHeader, token_ids: Sequence[int]) -> str:
    return b"".join(header.piece(token_id) for token_id in token_ids).decode()


@pytest.mark.model
class TestContract(GeneratingContract, ScoringContract):
    @pytest.fixture
    def case(self, gguf: Path, header: GgufHeader) -> EngineCase:
        return EngineCase(
            make=lambda: engine_of(gguf),
            make_crowded=lambda: engine_of(gguf, max_waiting=3),
            prompt=QUESTION,
            decode=lambda token_ids: text_of(header, token_ids),
        )


def with_engine(gguf: Path, check: Callable[[Bench], Awaitable[None]], **options: int) -> None:
    async def run() -> None:
        async with bench_of(engine_of(gguf, **options)) as bench:
            await check(bench)

    asyncio.run(run())


@pytest.mark.model
def test_it_knows_the_capital_of_france(gguf: Path, header: GgufHeader) -> None:
    async def check(bench: Bench) -> None:
        outputs = await bench.outputs(bench.generate(QUESTION, max_tokens=30, temperature=0.0))
        *token_ids, end = ids_of(outputs)
        assert text_of(header, token_ids) == "The capital of France is Paris."
        assert end == outputs[-1].stop_token_id == bench.capabilities.eos_token_ids[0]
        assert outputs[-1].finish_reason is FinishReason.STOP

    with_engine(gguf, check)


@pytest.mark.model
@pytest.mark.parametrize("max_tokens", range(1, 10))
def test_tokens_inside_a_character_are_not_lost(gguf: Path, header: GgufHeader, max_tokens: int) -> None:
    async def check(bench: Bench) -> None:
        grammar = 'root ::= "a\U0001f600\U0001f389b"'
        request = bench.generate(QUESTION, max_tokens=max_tokens, temperature=0.0, grammar=grammar, logprobs=1)
        outputs = await bench.outputs(request)
        token_ids = ids_of(outputs)
        assert len(token_ids) == min(max_tokens, 9)
        text = b"".join(header.piece(token_id) for token_id in token_ids if token_id > 2)
        assert "a\U0001f600\U0001f389b".encode().startswith(text)
        assert sum(len(output.logprobs or ()) for output in outputs) == len(token_ids)

    with_engine(gguf, check)


@pytest.mark.model
def test_what_it_cannot_do_is_invalid(gguf: Path) -> None:
    async def check(bench: Bench) -> None:
        prompts = ([], [-1], [49152], [5] * 1024)
        requests = [bench.generate(prompt) for prompt in prompts]
        fields = (
            {"regex": "a"},
            {"lora": "a"},
            {"prompt_logprobs": 1},
            {"logprobs": 21},
            {"grammar": " "},
            {"grammar": "%llguidance {}"},
            {"json_schema": "5"},
            {"json_schema": "[" * 5000},
            {"json_schema": '{"type": "string"}', "grammar": 'root ::= "a"'},
            {"grammar": 'root ::= "a"', "ignore_eos": True},
            {"grammar": 'root ::= "a"', "min_tokens": 2},
            {"grammar": 'root ::= "' + "a" * 70_000 + '"'},
        )
        requests += [bench.generate(QUESTION, **each) for each in fields]
        scores = [*(bench.score(prompt, [5]) for prompt in prompts), bench.score(QUESTION, [49152])]
        for request in [*requests, *scores, bench.embed(QUESTION)]:
            assert (await bench.failure(request)).kind is FailureKind.INVALID

    with_engine(gguf, check)


@pytest.mark.model
def test_no_tokens_are_an_answer_too(gguf: Path) -> None:
    async def check(bench: Bench) -> None:
        (output,) = await bench.outputs(bench.generate(QUESTION, max_tokens=0))
        assert output.finish_reason is FinishReason.LENGTH
        assert not output.new_token_ids

    with_engine(gguf, check)


@pytest.mark.model
def test_a_shared_prefix_is_cached_unless_salted(gguf: Path) -> None:
    async def check(bench: Bench) -> None:
        await bench.outputs(bench.generate(QUESTION, max_tokens=1))
        plain = bench.generate(QUESTION, max_tokens=1)
        assert (await bench.outputs(plain))[0].cached_tokens > 0
        salted = msgspec.structs.replace(bench.generate(QUESTION, max_tokens=1), cache_salt="mine")
        assert (await bench.outputs(salted))[0].cached_tokens == 0

    with_engine(gguf, check)


@pytest.mark.model
def test_signals_stay_with_the_process(gguf: Path) -> None:
    async def check(bench: Bench) -> None:
        signalled = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, signalled.set)
        await bench.engine.close()
        await bench.engine.start(bench.emit)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(signalled.wait(), 5)
        loop.remove_signal_handler(signal.SIGTERM)

    with_engine(gguf, check)


@pytest.mark.model
def test_its_http_server_cannot_be_reached(gguf: Path) -> None:
    async def check(bench: Bench) -> None:
        assert not open_doors()

    with_engine(gguf, check)


def open_doors() -> list[str]:
    """What this process listens on, and llama.cpp's Unix sockets that somebody could find."""
    connections = psutil.Process().net_connections("all")
    listening = [str(each.laddr) for each in connections if each.status == psutil.CONN_LISTEN]
    sockets = [str(each.laddr) for each in connections if str(each.laddr).endswith("http.sock")]
    assert sockets, "llama.cpp has none: then there is nothing to see here"
    return listening + [path for path in sockets if Path(path).exists()]


def test_a_file_that_is_no_model_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello, this is not a model")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + bytes(10))
    for name, message in (("text", "not a GGUF file"), ("cut", "damaged"), ("none", "No such file")):
        engine = create(str(tmp_path / f"{name}.gguf"), [])
        with pytest.raises(EngineError, match=message) as raised:
            asyncio.run(engine.start(lambda answers: None))
        assert "\n" not in str(raised.value)


def test_options_come_from_arguments() -> None:
    with pytest.raises(SystemExit):
        create("x.gguf", ["--no-such-option"])
    create("x.gguf", ["--n-parallel", "2", "--max-model-len", "2048", "--threads", "1"])


@pytest.mark.model
def test_labels_are_scored_by_what_the_model_would_say(gguf: Path) -> None:
    async def check(bench: Bench) -> None:
        scores = await scores_of(bench, bench.score(QUESTION, [504, 60, 5000]))  # "The", "L", something else
        assert scores[0] > scores[1] > scores[2]

    with_engine(gguf, check)

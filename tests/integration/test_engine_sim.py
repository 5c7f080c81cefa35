"""The simulated engine under the engines' contract, and what is its own: scripts, the time model, faults on demand."""

import array
import asyncio
import math
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from engine_bridge.engines.sim import Fault, FaultKind, SimEngine, SimOptions, create
from engine_bridge.wire import Embedding, Failure, FailureKind, FinishReason, Output
from tests.embedding_contract import EmbeddingContract
from tests.engine_bench import Bench, EngineCase, bench_of, ids_of, vector_of
from tests.generating_contract import GeneratingContract
from tests.pool import wait_for
from tests.scoring_contract import ScoringContract

PROMPT = tuple(b"The capital of France is")
BAD = 7  # a token id that sets faults off


class TestGenerating(GeneratingContract, ScoringContract):
    @pytest.fixture
    def case(self) -> EngineCase:
        return EngineCase(
            make=lambda: SimEngine(SimOptions(max_running=4, step_ms=0.5)),
            make_crowded=lambda: SimEngine(SimOptions(max_running=4, max_waiting=10)),
            prompt=PROMPT,
        )


class TestEmbedding(EmbeddingContract):
    @pytest.fixture
    def case(self) -> EngineCase:
        return EngineCase(
            make=lambda: SimEngine(SimOptions(task="embed", max_running=4, step_ms=0.5)),
            make_crowded=lambda: SimEngine(SimOptions(task="embed", max_running=4, max_waiting=10)),
            prompt=PROMPT,
        )


def with_sim(check: Callable[[Bench], Awaitable[None]], *arguments: str) -> None:
    async def run() -> None:
        async with bench_of(create("sim", list(arguments))) as bench:
            await check(bench)

    asyncio.run(run())


def test_echo_says_the_prompt_and_ends() -> None:
    async def check(bench: Bench) -> None:
        outputs = await bench.outputs(bench.generate(PROMPT, max_tokens=100))
        assert ids_of(outputs) == [*PROMPT, 258]
        assert outputs[-1].finish_reason is FinishReason.STOP

    with_sim(check, "--mode", "echo")


def test_a_step_gives_as_many_tokens_as_it_is_told() -> None:
    async def check(bench: Bench) -> None:
        outputs = await bench.outputs(bench.generate(PROMPT, max_tokens=7))
        assert [len(ids_of([output])) for output in outputs] == [3, 3, 1]

    with_sim(check, "--tokens-per-step", "3")


def test_the_time_model_counts_steps_requests_and_prefilled_tokens() -> None:
    async def check(bench: Bench) -> None:
        began = time.monotonic()
        await bench.ends(*bench.submit(*(bench.generate(PROMPT, max_tokens=2) for _ in range(2))))
        # prefill: 48 tokens at 1000/s; two steps of 10 ms and 5 ms for each of two requests
        assert 0.088 <= time.monotonic() - began < 5

    with_sim(check, "--step-ms", "10", "--step-ms-per-request", "5", "--prefill-tokens-per-second", "1000")


def test_no_more_run_than_are_told() -> None:
    async def check(bench: Bench) -> None:
        bench.submit(*(bench.generate(PROMPT, max_tokens=1000, ignore_eos=True) for _ in range(5)))
        await bench.until(lambda: bool(bench.answers))
        assert bench.engine.counts() == (2, 3)

    with_sim(check, "--max-running", "2")


def test_an_error_fault_fails_its_request_alone_after_some_tokens() -> None:
    async def check(bench: Bench) -> None:
        bad, good = bench.submit(bench.generate([BAD, 65], max_tokens=8), bench.generate(PROMPT, max_tokens=8))
        end, other = await bench.ends(bad, good)
        assert end == Failure(bad[1], FailureKind.INTERNAL, "the engine failed at this request")
        assert len(bench.answers[bad]) == 4
        assert isinstance(other, Output)

    with_sim(check, "--fault", f"error:{BAD}:3")


def test_a_refuse_fault_is_an_overload() -> None:
    async def check(bench: Bench) -> None:
        assert (await bench.failure(bench.generate([BAD]))).kind is FailureKind.OVERLOADED
        assert isinstance((await bench.ends(*bench.submit(bench.generate(PROMPT))))[0], Output)

    with_sim(check, "--fault", f"refuse:{BAD}")


def test_a_stall_fault_stops_all_output_but_not_the_loop() -> None:
    async def check(bench: Bench) -> None:
        bad, good = bench.submit(bench.generate([BAD]), bench.generate(PROMPT))
        await bench.until(lambda: bench.engine.counts() == (2, 0))
        until = time.monotonic() + 0.1
        await bench.until(lambda: time.monotonic() > until)
        assert not bench.answers
        bench.abort(bad, good)
        assert bench.engine.counts() == (0, 0)

    with_sim(check, "--fault", f"stall:{BAD}")


def test_a_slow_fault_delays_one_step() -> None:
    async def check(bench: Bench) -> None:
        began = time.monotonic()
        await bench.ends(*bench.submit(bench.generate([BAD], max_tokens=3)))
        assert 0.2 <= time.monotonic() - began < 5

    with_sim(check, "--fault", f"slow:{BAD}:0.2")


def test_a_nan_fault_spoils_a_vector() -> None:
    async def check(bench: Bench) -> None:
        assert all(math.isnan(value) for value in await vector_of(bench, bench.embed([BAD])))
        (end,) = await bench.ends(*bench.submit(bench.embed(PROMPT)))
        assert isinstance(end, Embedding)
        assert not any(math.isnan(value) for value in array.array("f", end.vector))

    with_sim(check, "--task", "embed", "--fault", f"nan:{BAD}")


def test_what_it_cannot_do_is_invalid() -> None:
    async def check_generating(bench: Bench) -> None:
        assert (await bench.failure(bench.embed(PROMPT))).kind is FailureKind.INVALID

    async def check_embedding(bench: Bench) -> None:
        assert (await bench.failure(bench.generate(PROMPT))).kind is FailureKind.INVALID

    with_sim(check_generating)
    with_sim(check_embedding, "--task", "embed")


def test_faults_are_parsed() -> None:
    assert Fault.parse("crash:5") == Fault(FaultKind.CRASH, 5)
    assert Fault.parse("slow:5:0.5") == Fault(FaultKind.SLOW, 5, 0.5)


FAULTY_PROCESS = """
import asyncio, faulthandler, signal, sys
from engine_bridge.engines.sim import create
from engine_bridge.wire import Generate, SamplingParams, pack_ids

async def main():
    faulthandler.register(signal.SIGUSR1)  # tells where we are, whatever the loop does
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, sys.exit)
    engine = create("sim", ["--fault", sys.argv[1] + ":7"])
    await engine.start(print)
    print("submitting")
    engine.submit([((b"a", 1), Generate(1, pack_ids([7]), SamplingParams()))])
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_a_crash_kills_the_process() -> None:
    command = [sys.executable, "-uc", FAULTY_PROCESS, "crash"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == "submitting\n"


def test_a_hang_freezes_the_loop_which_does_not_even_end_when_it_is_told_to(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as sink:
        command = [sys.executable, "-uc", FAULTY_PROCESS, "hang"]
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)

    def stands_in_the_fault(times: int) -> bool:
        process.send_signal(signal.SIGUSR1)
        return log.read_text().count("in _slow_seconds") >= times

    with process:
        try:
            wait_for(lambda: "submitting" in log.read_text(), 10, "the submission")
            wait_for(lambda: stands_in_the_fault(2), 5, "a loop that stands still")
            process.terminate()
            wait_for(lambda: stands_in_the_fault(5), 5, "a loop that stands still where it stood")
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL
    assert "Output" not in log.read_text()

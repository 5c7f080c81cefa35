"""The lane: who waits for whom, what runs where, and that nothing is left behind."""

import asyncio
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiserver.errors import InvalidRequest
from apiserver.events import PreparedPrompt
from apiserver.pipeline.prepare import prepare_tokenize
from apiserver.requests import Chat, Prompt, Text, TokenizeJob
from apiserver.timings import Timings
from apiserver.tokenizer.template import ChatTemplate
from tests.unit.pipeline.lane_bench import CARD, SECONDS, begun, bench_of, long_text, run, turn, until_idle, who

MAIN = threading.main_thread().name


# ---- where ----


def test_short_work_stays_on_the_loop_and_long_work_leaves_it() -> None:
    async def check() -> None:
        async with bench_of() as bench:
            await bench.short("s")
            assert (bench.inline.threads, bench.threaded.threads) == ({MAIN}, set())
            await bench.long("l")
            assert bench.inline.texts == ["s"]
            assert bench.threaded.texts == ["l"]
            assert MAIN not in bench.threaded.threads

    run(check)


def test_one_thread_does_it_all() -> None:
    async def check() -> None:
        async with bench_of() as bench:
            await asyncio.gather(*(bench.long(str(number)) for number in range(50)))
            assert len(bench.threaded.threads) == 1
            assert bench.threaded.texts == bench.order == [str(number) for number in range(50)]

    run(check)


def test_many_short_prompts_are_long_work() -> None:
    async def check() -> None:
        async with bench_of() as bench:
            prompts: list[Prompt] = [Text("x" * 100, f"prompt[{number}]") for number in range(100)]
            await bench.lane.run(prepare_tokenize, TokenizeJob(prompts), CARD, Timings())
            assert bench.inline.texts == []
            assert len(bench.threaded.texts) == 100

    run(check)


def test_inline_never_leaves_the_loop() -> None:
    async def check() -> None:
        async with bench_of("inline") as bench:
            await bench.long("l")
            assert bench.inline.threads == {MAIN}
            assert bench.threaded.texts == []

    run(check)


# ---- when ----


def test_in_arrival_order_nothing_overtakes_a_long_one() -> None:
    async def check() -> None:
        async with bench_of("arrival", gated=True) as bench:
            tasks = [bench.long("1"), bench.short("2"), bench.short("3"), bench.long("4"), bench.short("5")]
            await begun(bench.threaded)
            await turn()
            assert bench.order == []
            assert bench.lane.outstanding == 5
            assert bench.threaded.gate is not None
            bench.threaded.gate.set()
            await asyncio.gather(*tasks)
            assert bench.order == ["1", "2", "3", "4", "5"]
            assert bench.inline.texts == []

    run(check)


def test_in_ready_order_a_short_one_goes_on_at_once() -> None:
    async def check() -> None:
        async with bench_of("ready", gated=True) as bench:
            tasks = [bench.long("1"), bench.short("2")]
            await begun(bench.threaded)
            await bench.short("3")
            assert bench.order == ["2", "3"]
            assert bench.inline.texts == ["2", "3"]
            assert bench.threaded.gate is not None
            bench.threaded.gate.set()
            await asyncio.gather(*tasks)
            assert bench.order == ["2", "3", "1"]

    run(check)


@pytest.mark.parametrize("turns", range(6))
def test_what_is_done_but_has_not_gone_on_is_not_overtaken_either(turns: int) -> None:
    """Between the job's end in its thread and the turn in which its waiter submits, a short one must still queue."""

    async def check() -> None:
        async with bench_of("arrival", gated=True) as bench:
            first = bench.long("1")
            await begun(bench.threaded)
            assert bench.threaded.gate is not None
            bench.threaded.gate.set()
            assert bench.threaded.ended.wait(SECONDS)  # here, so that the loop sees nothing of it
            for _ in range(turns):
                await asyncio.sleep(0)
            await asyncio.gather(first, bench.short("2"))
            assert bench.order == ["1", "2"]

    run(check)


def test_when_nothing_is_outstanding_short_work_is_inline_again() -> None:
    async def check() -> None:
        async with bench_of("arrival") as bench:
            await asyncio.gather(bench.long("1"), bench.short("2"))
            assert bench.lane.outstanding == 0
            await bench.short("3")
            assert bench.inline.texts == ["3"]

    run(check)


def test_the_wait_for_the_thread_is_told_apart_from_the_work() -> None:
    async def check() -> None:
        async with bench_of("arrival", gated=True) as bench:
            first = bench.long("1")
            await begun(bench.threaded)
            second = Timings()
            waits = asyncio.create_task(bench.prepare("2", Text(long_text("2"), "prompt"), second))
            await turn()
            queued = time.perf_counter()
            await turn()
            waited = time.perf_counter() - queued
            assert bench.threaded.gate is not None
            bench.threaded.gate.set()
            await asyncio.gather(first, waits)
            assert second.wait >= waited > 0
            short = Timings()
            await bench.prepare("3", Text("3", "prompt"), short)
            assert short.wait == 0

    run(check)


# ---- who leaves ----


def test_a_running_job_whose_client_has_left_keeps_its_place() -> None:
    async def check() -> None:
        async with bench_of("arrival", gated=True) as bench:
            left = bench.long("1")
            await begun(bench.threaded)
            left.cancel()
            await asyncio.wait([left])
            assert left.cancelled()
            assert bench.lane.outstanding == 1
            short = bench.short("2")
            await turn()
            assert bench.order == []
            assert bench.threaded.gate is not None
            bench.threaded.gate.set()
            await short
            assert bench.threaded.texts == ["1", "2"]
            await until_idle(bench.lane)

    run(check)


def test_a_job_whose_client_left_before_its_turn_is_not_done() -> None:
    async def check() -> None:
        async with bench_of("arrival", gated=True) as bench:
            first, left, last = bench.long("1"), bench.long("2"), bench.short("3")
            await begun(bench.threaded)
            left.cancel()
            await asyncio.wait([left])
            assert bench.lane.outstanding == 3  # it keeps its place all the same
            assert bench.threaded.gate is not None
            bench.threaded.gate.set()
            await asyncio.gather(first, last)
            assert bench.threaded.texts == ["1", "3"]
            await until_idle(bench.lane)

    run(check)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_job_that_fails_fails_its_own_request_alone(leaves: bool) -> None:
    async def check() -> None:
        async with bench_of("arrival", gated=True) as bench:
            fails, first, second = bench.long("fails"), bench.long("1"), bench.short("2")
            await begun(bench.threaded)
            if leaves:
                fails.cancel()
            assert bench.threaded.gate is not None
            bench.threaded.gate.set()
            with pytest.raises(asyncio.CancelledError if leaves else LookupError):
                await fails
            await asyncio.gather(first, second)
            assert bench.order == ["1", "2"]
            await until_idle(bench.lane)

    run(check)


def test_an_inline_job_that_fails_leaves_nothing_outstanding() -> None:
    async def check() -> None:
        async with bench_of() as bench:
            with pytest.raises(InvalidRequest, match="lone surrogate"):
                await bench.short("\ud83d")
            assert bench.lane.outstanding == 0

    run(check)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), max_size=12))
def test_whoever_comes_and_whoever_leaves_the_rest_goes_on_in_order(
    requests: list[tuple[bool, bool, bool]],
) -> None:
    async def check() -> None:
        async with bench_of("arrival") as bench:
            tasks: list[asyncio.Task[PreparedPrompt]] = []
            stay: list[str] = []
            for number, (is_long, yields, leaves) in enumerate(requests):
                task = bench.long(str(number)) if is_long else bench.short(str(number))
                tasks.append(task)
                if yields:
                    await asyncio.sleep(0)
                if leaves:
                    task.cancel()
                else:
                    stay.append(str(number))
            await asyncio.gather(*tasks, return_exceptions=True)
            assert [name for name in bench.order if name in stay] == stay
            assert bench.order == sorted(bench.order, key=int)
            await until_idle(bench.lane)

    run(check)


# ---- what goes along ----


def test_context_variables_follow_the_job() -> None:
    async def check() -> None:
        async with bench_of("arrival", gated=True) as bench:
            tasks: list[asyncio.Task[PreparedPrompt]] = []
            for name in ("first", "second"):
                who.set(name)
                tasks.append(bench.long(name))
            who.set("somebody else")
            assert bench.threaded.gate is not None
            bench.threaded.gate.set()
            await asyncio.gather(*tasks)
            assert bench.threaded.callers == ["first", "second"]

    run(check)


@pytest.mark.parametrize("is_long", [False, True])
def test_a_job_takes_the_template_as_it_is_when_it_runs(is_long: bool) -> None:
    async def check() -> None:
        async with bench_of("arrival", gated=True) as bench:
            chat = Chat([{"role": "user", "content": "x" * (3000 if is_long else 1)}])
            queue = [bench.long("before")] if is_long else []
            task = asyncio.create_task(bench.prepare("chat", chat))
            if is_long:
                await begun(bench.threaded)
            for preprocessor in bench.preprocessors:
                preprocessor.template = ChatTemplate("new{{ messages[0].content }}", {})
            assert bench.threaded.gate is not None
            bench.threaded.gate.set()
            prepared = await task
            assert prepared.text is not None
            assert prepared.text.startswith("newx")
            await asyncio.gather(*queue)

    run(check)


def test_closing_lets_the_running_job_end_and_drops_the_rest() -> None:
    async def check() -> None:
        async with bench_of("arrival", gated=True) as bench:
            running, waiting = bench.long("1"), bench.long("2")
            await begun(bench.threaded)
            bench.lane.close()
            assert bench.threaded.gate is not None
            bench.threaded.gate.set()
            await running
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert bench.threaded.texts == ["1"]

    run(check)

"""Percentiles, CPU by role, prompts of a size, tables: what the benchmarks count, ask and show."""

import asyncio
import io
import os
import random
import subprocess

import pytest

from tests.script_parts import load_parts

endpoints, load, processes, prompts, report, stats = load_parts(
    "benchlib", "endpoints", "load", "processes", "prompts", "report", "stats"
)


def test_percentiles_are_linear_between_neighbours() -> None:
    summary = stats.summarize([float(value) for value in range(101, 0, -1)])
    assert summary == {"count": 101, "mean": 51.0, "p50": 51.0, "p90": 91.0, "p99": 100.0, "max": 101.0}
    assert stats.percentile([1.0, 2.0], 50) == 1.5
    assert stats.percentile([7.0], 99) == 7.0
    assert stats.summarize([]) == {"count": 0}


def test_medians_go_through_the_tree_and_leave_texts_out() -> None:
    runs = [{"a": {"b": 1, "c": 5}, "notes": "x"}, {"a": {"b": 9}, "notes": "y"}, {"a": {"b": 2, "c": 7}}]
    assert stats.medians(runs) == {"a": {"b": 2, "c": 6}}


def test_latencies_of_a_request_count_from_when_it_was_due() -> None:
    sample = endpoints.Sample(due=1.0, sent=1.5, ended=4.0, token_times=[2.0, 2.5, 3.5], output_tokens=4)
    assert (sample.ttft, sample.itl, sample.tpot, sample.e2e) == (1.0, [0.5, 1.0], 0.5, 3.0)


def test_cpu_is_counted_by_role_also_of_processes_that_came_meanwhile() -> None:
    roles = {10: "engine", 11: "api-10", 12: "api-2", 13: "api-2"}
    before = processes.Reading(0.0, 1.0, 100.0, {10: 1.0, 11: 2.0, 12: 3.0})
    after = processes.Reading(2.0, 1.5, 110.0, {10: 4.0, 11: 2.5})
    born = processes.Reading(2.0, 1.5, 110.0, {13: 0.25})
    spent = processes.spent(before, after.joined(born), roles)
    assert list(spent.server_seconds.items()) == [("api-2", 0.25), ("api-10", 0.5), ("engine", 3.0)]
    assert (spent.wall_seconds, spent.client_seconds, spent.others_seconds, spent.gone) == (2.0, 0.5, 5.75, ["api-2"])


def test_roles_come_from_the_pool_and_a_child_of_the_engine_is_the_engine() -> None:
    document = {
        "processes": [
            {"role": "api", "slot": 3, "pid": 8},
            {"role": "api", "slot": 4, "pid": None},
        ],
        "engine": {"pid": 9},
        "supervisor": {"pid": 10},
    }
    roles = processes.roles_from_pool(document)
    assert roles == {8: "api-3", 9: "engine", 10: "supervisor"}
    assert processes.roles_from_pool(None) == {}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert processes.roles_of_tree({}, root=child.pid) == {child.pid: "supervisor"}
        roles = processes.roles_of_tree({os.getpid(): "engine"}, root=None)
        assert roles[child.pid] == "engine"
        assert os.getpid() not in roles, "the bench itself is never the server's"


@pytest.mark.parametrize("per_word", [True, False], ids=["words", "characters"])
def test_prompts_have_exactly_as_many_tokens_as_asked_and_differ(per_word: bool) -> None:
    async def count(text: str) -> int:
        # Invented words are two tokens or more in a tokenizer of words; they are those longer than eight letters here.
        return 3 + (sum(1 + len(word) // 9 for word in text.split()) if per_word else len(text))

    async def make() -> list[str]:
        maker = prompts.PromptMaker(random.Random(1), 40, count=count)
        return [await maker.make() for _ in range(20)]

    texts = asyncio.run(make())
    assert {asyncio.run(count(text)) for text in texts} == {40}
    assert len(set(texts)) == 20


def test_the_same_seed_makes_the_same_prompts_and_arrivals() -> None:
    def make(seed: int) -> tuple[str, list[float]]:
        rng = random.Random(seed)
        text = asyncio.run(prompts.PromptMaker(rng, 30, count=None).make())
        return text, load.poisson_schedule(rng, 10.0, requests=None, duration_seconds=5.0)

    assert make(1) == make(1) != make(2)
    schedule = load.poisson_schedule(random.Random(3), 50.0, requests=2000, duration_seconds=None)
    assert schedule == sorted(schedule)
    assert schedule[-1] / 2000 == pytest.approx(1 / 50, rel=0.1)


def test_tables_are_markdown_and_aligned() -> None:
    assert report.table(["load", "req/s", "why"], [["1 client", "9.5", "a"], ["16 clients", "-", "bcd"]]).split(
        "\n"
    ) == [
        "| load       | req/s | why |",
        "|------------|------:|-----|",
        "| 1 client   |   9.5 | a   |",
        "| 16 clients |     - | bcd |",
    ]
    numbers = [None, 0, 0.01234, 0.5, 1.234, 12.34, 123.4]
    assert [report.number(value) for value in numbers] == ["-", "0", "0.0123", "0.500", "1.23", "12.3", "123"]


def test_progress_without_a_terminal_is_a_line_at_the_end() -> None:
    async def work() -> str:
        stream = io.StringIO()
        with report.Progress("a run", total=4, stream=stream) as progress:
            progress.advance()
            progress.advance(is_failed=True)
            assert progress.line(6.0) == "a run [############------------]  50% 2/4, 1 failed, 6 s, 6 s left"
        with report.Progress("prompts", total=4, is_passing=True, stream=stream):
            pass
        return stream.getvalue()

    assert asyncio.run(work()).splitlines() == ["a run [############------------]  50% 2/4, 1 failed, 0 s, 0 s left"]

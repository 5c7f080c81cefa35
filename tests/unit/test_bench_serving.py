"""`scripts/bench_serving` against a small server."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import uvloop

from tests.bench_server import Server
from tests.script_parts import SCRIPTS, load_parts

bencher, client, endpoints, load, pool, processes, serving = load_parts(
    "benchlib", "bencher", "client", "endpoints", "load", "pool", "processes", "serving"
)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def run(server: Server, *arguments: str) -> dict[str, Any]:
    options = serving.parse(["--url", server.url, "--input-tokens", "20", "--output-tokens", "5", *arguments])
    target = client.Target.parse(options.url, api_key=options.api_key)
    return uvloop.run(serving.bench(options, pool.Server(target, options.server_pid)))


def notes(level: dict[str, Any]) -> list[str]:
    """Without the one that is true here: the server is a thread of ours, so we seem to be busy."""
    return [note for note in level["notes"] if not note.startswith("the client used")]


def test_an_open_loop_counts_latency_from_the_scheduled_time(server: Server) -> None:
    """A schedule that lies in the past is a client that is late: the lateness must be in every latency."""
    workload = endpoints.Workload(endpoint="chat", model="sim", output_tokens=5, is_stream=True)
    target = client.Target.parse(server.url, api_key=None)
    request = target.request("POST", workload.path, body=workload.body("hello"))
    samples: list[Any] = []

    def on_reply(due: float, reply: Any) -> None:
        samples.append(workload.judge(due, reply))

    now = perf_counter()
    schedule = [now - 30, now - 20, now + 0.01]
    uvloop.run(
        load.open_loop(target, iter([request] * 3), schedule=schedule, timeout_seconds=10, on_reply=on_reply),
    )
    assert [sample.failure for sample in samples] == [None] * 3
    by_due = sorted(samples, key=lambda sample: sample.due)
    assert [sample.due for sample in by_due] == schedule
    assert by_due[0].ttft > 30
    assert 20 < by_due[1].e2e < 30
    assert 0 <= by_due[2].sent - by_due[2].due < 5
    assert by_due[2].e2e < 5


def test_a_closed_loop_counts_everything_it_asked_for(server: Server, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        server.pid = child.pid
        arguments = ["--url", server.url, "--input-tokens", "20", "--output-tokens", "5", "--requests", "40"]
        arguments += ["--concurrency", "1,4", "--repeat", "3", "--api-key", "secret", "--json", str(output)]
        assert serving.main(arguments) == 0
    document = json.loads(output.read_text())
    assert "secret" not in output.read_text()
    assert str(tmp_path) not in output.read_text()
    assert document["machine"]["cores"] >= 1
    assert [level["load"] for level in document["levels"]] == ["1 client", "4 clients"]
    for level in document["levels"]:
        assert (level["succeeded"], level["failures"], notes(level)) == (120, {}, [])
        median = level["median"]
        assert (median["prompt_tokens"], median["output_tokens"]) == (40 * 20, 40 * 5)
        assert median["latency_seconds"]["ttft"]["count"] == 40
        assert median["latency_seconds"]["itl"]["count"] == 40 * 4
        assert median["requests_per_second"] == pytest.approx(40 / median["seconds"], rel=0.5)
        assert set(median["server"]) == {"api-0"}
    bodies = [body for path, body in server.requests if path == "/v1/chat/completions"]
    assert len(bodies) == 2 * 3 * (40 + 8)
    assert len({body["messages"][0]["content"] for body in bodies}) == len(bodies)
    asked = {"max_tokens": 5, "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
    assert all(body.items() >= asked.items() for body in bodies)


def test_an_open_loop_and_a_duration_run_to_their_end(server: Server) -> None:
    level = run(server, "--rate", "400", "--requests", "40", "--repeat", "1", "--no-stream")["levels"][0]
    assert (level["load"], level["succeeded"], level["failures"]) == ("400 req/s", 40, {})
    assert level["median"]["latency_seconds"]["ttft"] == {"count": 0}
    arguments = ["--endpoint", "embeddings", "--duration", "0.1", "--prompts", "1", "--concurrency", "2"]
    level = run(server, *arguments, "--repeat", "1", "--warmup", "0")["levels"][0]
    assert level["failures"] == {}
    assert level["median"]["prompt_tokens"] == 20 * level["succeeded"]
    assert level["median"]["seconds"] >= 0.05
    assert notes(level) == ["prompts were sent more than once: a cache may have known them"]


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("overloaded", "HTTP 503"),
        ("short", "wrong number of output_tokens"),
        ("unfinished", "stream without [DONE]"),
        ("cut", "connection lost"),
        ("broken", "error in the stream"),
        ("garbage", "not an HTTP reply"),
    ],
)
def test_failures_are_counted_by_kind_and_fail_the_command(
    server: Server, capsys: pytest.CaptureFixture[str], model: str, kind: str
) -> None:
    arguments = ["--url", server.url, "--model", model, "--input-tokens", "20", "--output-tokens", "5"]
    arguments += ["--requests", "3", "--concurrency", "2", "--repeat", "1", "--warmup", "1"]
    assert serving.main(arguments) == 1
    shown = capsys.readouterr()
    assert re.search(rf"\| 2 clients \| {re.escape(kind)} +\| +4 \|", shown.out), shown.out
    assert "1 requests failed in the warm-up" in shown.out
    assert "3/3, 3 failed" in shown.err
    assert serving.main([*arguments, "--allow-failures"]) == 0


def test_no_server_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Server() as gone:
        pass
    assert serving.main(["--url", gone.url]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_server_that_refuses_every_connection_is_a_failure_per_request() -> None:
    with Server() as gone:
        target = client.Target.parse(gone.url, api_key=None)
    failures: list[str] = []
    closed = load.closed_loop(
        target,
        iter([b"x", b"x"]),
        concurrency=2,
        until=None,
        timeout_seconds=1,
        on_reply=lambda due, reply: failures.append(reply.failure),
    )
    uvloop.run(closed)
    assert failures == ["connect: ConnectionRefusedError"] * 2


def test_the_script_runs_as_a_command(server: Server) -> None:
    command = [sys.executable, str(SCRIPTS / "bench_serving"), "--url", server.url, "--requests", "4", "--repeat", "1"]
    result = subprocess.run([*command, "--concurrency", "2"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "| 2 clients |         4 |      0 |" in result.stdout
    assert "TTFT" in result.stdout
    assert "2 clients, run 1/1 [########################] 100% 4/4" in result.stderr
    assert os.access(SCRIPTS / "bench_serving", os.X_OK)


def test_a_busy_client_is_said() -> None:
    settings = bencher.RunSettings(endpoint="chat", input_tokens=20)
    server = pool.Server(client.Target.parse("http://h", api_key=None), None)
    bench = bencher.Bencher(settings, server, workload=None, http=None)
    spent = processes.Spent(
        wall_seconds=10.0, client_seconds=9.0, server_seconds={}, others_seconds=0.0, gone=["api-1"]
    )
    notes = bench.notes([], spent, is_reused=False)
    assert notes[0].startswith("the client used 90% of a core")
    assert notes[1].endswith("api-1")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prompt-ids"],
        ["--requests", "0"],
        ["--rate", "nan"],
        ["--requests", "1", "--duration", "1"],
        ["--rate", "1", "--concurrency", "1"],
    ],
)
def test_a_command_line_that_makes_no_sense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        serving.parse(arguments)

"""`scripts/bench_serving` against a small server that cuts its bytes at awkward places."""

import asyncio
import importlib
import io
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import uvloop

SCRIPTS = Path(__file__).parents[2] / "scripts"


def load_part(name: str) -> Any:
    """The scripts are no package that is installed; they find theirs beside them."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module(f"benchlib.{name}")
    finally:
        sys.path.remove(str(SCRIPTS))


bencher, client, endpoints, load, parsing, pool, processes, prompts, report, serving, stats = (
    load_part(name)
    for name in (
        "bencher",
        "client",
        "endpoints",
        "load",
        "parsing",
        "pool",
        "processes",
        "prompts",
        "report",
        "serving",
        "stats",
    )
)

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding:  chunked\r\n\r\n"
)


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def chat_event(**delta: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%X;ext=1\r\n%s\r\n" % (len(part), part) for part in parts)


def whole(status: int, document: object) -> bytes:
    body = json.dumps(document).encode()
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


def chat_stream(output_tokens: int, prompt_tokens: int, *, done: bool = True) -> bytes:
    """A role, the tokens in several events a chunk and several chunks an event, a separate end, usage, [DONE]."""
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": output_tokens}
    body = b"".join(
        [
            chat_event(role="assistant", content=""),
            *(chat_event(content=f'to"{number}') for number in range(output_tokens)),
            event({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "length"}]}),
            event({"choices": [], "usage": usage}),
            b"data: [DONE]\n\n" if done else b"",
        ]
    )
    pieces = [body[at : at + 33] for at in range(0, len(body), 33)]
    return STREAM_HEAD + chunked(*pieces) + b"0\r\nTrailer: x\r\n\r\n"


class FakeServer(asyncio.Protocol):
    """Speaks just enough; which of its faults a chat request meets is told by its model's name."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, found, body = self._held.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        if not found or len(body) < (int(length[1]) if length else 0):
            return
        self._held = b""
        path = head.split(b" ")[1].decode()
        document = json.loads(body) if body else {}
        self._server.requests.append((path, document))
        answer = self._answer(path, document)
        for at in range(0, len(answer), 50):
            self._transport.write(answer[at : at + 50])
        if document.get("model") == "cut":
            self._transport.close()

    def _answer(self, path: str, document: dict[str, Any]) -> bytes:
        match path:
            case "/v1/models":
                return whole(200, {"data": [{"id": "sim"}]})
            case "/tokenize":
                return whole(200, {"count": self._count(document)})
            case "/pool":
                return whole(200, {"processes": [{"role": "api", "slot": 0, "pid": self._server.pid}], "engine": None})
            case "/v1/embeddings":
                usage = {"prompt_tokens": len(document["input"].split())}
                return whole(200, {"data": [{"embedding": [0.5, 0.25]}], "usage": usage})
            case "/v1/chat/completions":
                return self._chat(document)
        return whole(404, {"error": {"message": "no such route"}})

    def _count(self, document: dict[str, Any]) -> int:
        text = document["messages"][0]["content"] if "messages" in document else document["prompt"]
        return len(text.split()) + (3 if "messages" in document else 0)

    def _chat(self, document: dict[str, Any]) -> bytes:
        asked, counted = document["max_tokens"], self._count(document)
        match document["model"]:
            case "overloaded":
                return whole(503, {"error": {"message": "the | queue is full"}})
            case "short":
                return chat_stream(asked - 1, counted)
            case "unfinished":
                return chat_stream(asked, counted, done=False)
            case "cut":
                return chat_stream(asked, counted)[:-40]
            case "broken":
                return STREAM_HEAD + chunked(event({"error": {"message": "died"}}), b"data: [DONE]\n\n") + b"0\r\n\r\n"
            case "garbage":
                return b"SSH-2.0-OpenSSH\r\n\r\n"
        if not document["stream"]:
            return whole(200, {"choices": [], "usage": {"prompt_tokens": counted, "completion_tokens": asked}})
        return chat_stream(asked, counted)


class Server:
    """A FakeServer in a thread, and what it was asked."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.url = ""
        self.pid: int | None = None
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "Server":
        self._thread.start()
        assert self._is_up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await self._loop.create_server(lambda: FakeServer(self), "127.0.0.1", 0)
        async with server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._is_up.set()
            await self._stop.wait()


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


# ---- bytes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 10_000])
def test_a_stream_is_read_alike_however_it_is_cut(size: int) -> None:
    data = chat_stream(4, 20)
    parser, events = parsing.ResponseParser(), parsing.EventScanner()
    for at in range(0, len(data), size):
        events.feed(parser.feed(data[at : at + size]), float(at))
    assert (parser.status, parser.is_event_stream, parser.is_done, parser.closes) == (200, True, True, False)
    assert len(events.token_times) == 4
    assert events.is_done
    assert json.loads(events.last_document)["usage"] == {"prompt_tokens": 20, "completion_tokens": 4}


@pytest.mark.parametrize("size", [1, 5, 10_000])
def test_a_body_of_known_length_is_read_alike_however_it_is_cut(size: int) -> None:
    data = whole(429, {"error": "busy"})
    parser = parsing.ResponseParser()
    body = b"".join(parser.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert (parser.status, parser.is_done, json.loads(body)) == (429, True, {"error": "busy"})


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    parser = parsing.ResponseParser()
    assert parser.feed(b"HTTP/1.1 200 OK\r\n\r\nall") == b"all"
    assert (parser.is_done, parser.closes, parser.end()) == (False, True, True)


@pytest.mark.parametrize("data", [b"SSH-2.0\r\n\r\n", STREAM_HEAD + b"xyz\r\n", whole(200, {}) + b"more"])
def test_what_is_not_our_reply_is_an_error(data: bytes) -> None:
    with pytest.raises(parsing.ReplyError):
        parsing.ResponseParser().feed(data)


def test_token_events_have_the_time_of_the_buffer_that_ended_them() -> None:
    events = parsing.EventScanner()
    events.feed(chat_event(role="assistant", content="") + chat_event(content="a") + b"data: {", 1.0)
    events.feed(chat_event(content="b").removeprefix(b"data: {") + chat_event(content=""), 2.0)
    events.feed(b": keep-alive\n\n" + chat_event(reasoning_content="c"), 3.0)
    assert events.token_times == [1.0, 2.0, 2.0, 3.0]


def test_events_may_end_in_carriage_returns() -> None:
    events = parsing.EventScanner()
    for piece in (b'data: {"choices":[{"text":"a"}]}\r', b'\n\r\ndata: {"choices":[{"text":"b"}]}\r\n\r', b"\n"):
        events.feed(piece, 1.0)
    assert len(events.token_times) == 2


def test_generated_text_that_looks_like_an_end_or_a_key_is_text() -> None:
    events = parsing.EventScanner()
    events.feed(chat_event(content='"finish_reason":"stop"') + chat_event(content='data: [DONE] "role":"x"'), 1.0)
    assert (len(events.token_times), events.is_done) == (2, False)


def test_a_request_is_ready_made_and_carries_the_key() -> None:
    target = client.Target.parse("http://name:81/base/v1/", api_key="secret")
    assert target.request("POST", "/v1/completions", body=b"{}").decode().split("\r\n") == [
        "POST /base/v1/completions HTTP/1.1",
        "Host: name:81",
        "Accept: */*",
        "Authorization: Bearer secret",
        "Content-Type: application/json",
        "Content-Length: 2",
        "",
        "{}",
    ]


# ---- numbers ----------------------------------------------------------------------------------------------------


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


# ---- prompts ----------------------------------------------------------------------------------------------------


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


# ---- the load ---------------------------------------------------------------------------------------------------


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


# ---- what is shown ----------------------------------------------------------------------------------------------


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

"""Short runs of the benchmarks, and what they show."""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench_server import Server
from tests.script_parts import SCRIPTS, load_parts

(
    balance,
    embedding,
    embedding_report,
    encoding,
    errors,
    mixed,
    overhead,
    overhead_report,
    plot,
    report,
    sizing,
    sizing_report,
) = load_parts(
    "benchlib",
    "balance",
    "embedding",
    "embedding_report",
    "encoding",
    "errors",
    "mixed",
    "overhead",
    "overhead_report",
    "plot",
    "report",
    "sizing",
    "sizing_report",
)

ORIGIN = {
    "label": "",
    "commit": "0123456789abcdef-dirty",
    "date": "2026-11-30T12:00:00+00:00",
    "machine": {"cpu": "C", "cores": 2, "kernel": "6.1", "python": "3.11.7"},
}


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


# ---- short runs against a server that is no pool ----------------------------------------------------------------


def written(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def test_overhead_of_a_url_is_its_online_side(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    said = ["--url", server.url, "--tokens", "20", "--duration", "0.05", "--repeat", "2", "--json", str(output)]
    assert overhead.main(said) == 0
    shown = capsys.readouterr().out
    assert "The server sends no Server-Timing header" in shown
    assert re.search(r"^\| 20 +\| +20\.0 \| +- \| +- \| +[\d.]+ \|", shown, re.MULTILINE), shown
    level = written(output)["levels"][0]
    assert (level["tokens"], level["failed"], len(level["runs"])) == (20, 0, 2)
    assert level["median"]["online_seconds"]["mean"] > 0


def test_embeddings_of_a_url_are_one_line(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.json"
    said = ["--url", server.url, "--tokens", "20", "--clients", "1,2", "--duration", "0.05", "--repeat", "1"]
    assert embedding.main([*said, "--json", str(output)]) == 0
    assert "| server  |       2 |" in capsys.readouterr().out
    document = written(output)
    assert document["offline"] is None
    assert [level["clients"] for level in document["levels"]] == [1, 2]
    assert all(level["failures"] == {} for level in document["levels"])
    assert embedding_report.panels(document)[0].point_labels == {"server": ["1", "2"]}


def test_mixed_load_on_a_url_is_one_configuration(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    said = ["--url", server.url, "--short-tokens", "20", "--long-tokens", "300", "--output-tokens", "4"]
    said += ["--duration", "0.2", "--repeat", "1", "--long-clients", "1", "--short-clients", "2"]
    assert mixed.main([*said, "--json", str(output)]) == 0
    without, with_long = written(output)["levels"]
    assert (without["config"], without["long"], with_long["long"]) == ("server", "without", "with")
    assert without["median"]["long"]["completed"] == 0
    assert with_long["median"]["long"]["completed"] > 0
    assert with_long["median"]["long"]["prompt_tokens"]["mean"] == pytest.approx(300, rel=0.1)
    assert without["median"]["models_seconds"]["count"] == 20
    assert without["failures"] == with_long["failures"] == {}
    chats = [body["messages"][0]["content"] for path, body in server.requests if path == "/v1/chat/completions"]
    long = [text for text in chats if len(text) > 1000]  # what it takes for 300 tokens; shorter ones were tries
    assert len(set(long)) >= len(long) - 1, "long prompts end differently"
    assert len({text[:300] for text in long}) == 1, "and begin alike"
    assert "with ÷ without" in capsys.readouterr().out


def test_encoders_are_compared_on_a_real_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.json"
    said = ["minilm", "--tokens", "16,64", "--calls", "3", "--repeat", "2", "--json", str(output)]
    assert encoding.main([*said, "--backends", "encode,encode_batch_fast"]) == 0
    results = written(output)["results"]
    assert [(result["backend"], result["tokens"]) for result in results] == [
        ("encode", 16),
        ("encode_batch_fast", 16),
        ("encode", 64),
        ("encode_batch_fast", 64),
    ]
    assert {(result["mismatches"], result["compared"]) for result in results} == {(0, 406)}
    assert "| minilm    | encode_batch_fast |     64 |" in capsys.readouterr().out


# ---- what is shown ----------------------------------------------------------------------------------------------


def test_the_origin_is_one_line() -> None:
    assert report.provenance_line(ORIGIN) == (
        "2 cores of C, Linux 6.1, Python 3.11.7; commit 0123456789-dirty; 2026-11-30"
    )


def test_the_overhead_is_shown_by_stage() -> None:
    summary = {"count": 3, "mean": 0.001, "p50": 0.002, "p99": 0.003}
    median = {
        "prompt_tokens": {"mean": 16.0},
        "offline_seconds": {"mean": 0.0004, "p50": 0.0003},
        "online_seconds": summary,
        "added_seconds": {"mean": 0.0006, "p50": 0.0017},
        "stages_seconds": {"parse": {"mean": 0.0001, "p50": 0.0001}, "engine": {"mean": 0.0005, "p50": 0.0004}},
        "cpu_seconds_per_request": {"api-0": 0.0002, "client": 0.00005},
    }
    document = {
        **ORIGIN,
        "settings": {"endpoint": "embeddings", "repeat": 3},
        "model": "sim",
        "encoder": "hf",
        "levels": [{"tokens": 16, "failed": 0, "median": median, "runs": []}],
    }
    shown = overhead_report.render(document)
    assert (
        "| 16     |    16.0 |           0.400 | 0.300 |           1.00 | 2.00 |         0.600 | 1.70 |       3.00 |"
        in shown
    )
    assert "| 16 tokens | engine                  |   0.500 |  0.400 |" in shown
    assert "| 16 tokens | (client, sockets, HTTP) |   0.400 |   1.50 |" in shown
    sides, stages = overhead_report.panels(document)
    assert sides.series["added"] == [0.6]
    assert stages.is_stacked


def test_the_sizes_of_pools_are_shown_and_what_is_unknown_is_a_dash() -> None:
    memory = {"API server": {"pss": 20e6, "uss": 5e6, "uss_max": 6e6}}
    spread = balance.summary([[4, 4]])
    median = {
        "api_servers": 2,
        "seconds": {"command_to_ready": 0.5},
        "memory_fresh": memory,
        "memory_after": memory,
        "idle_share": {"API server": 0.002},
        "requests_per_second": 5000.0,
        "cpu_seconds_per_request": {"API servers": 0.0002},
        "failed": 0,
        "balance": {"8": {"at_once": spread, "beside": {"new": spread, "total": spread}}},
    }
    document = {
        **ORIGIN,
        "settings": {"endpoint": "embeddings", "tokens": 16, "requests": 9, "tokenizer": None, "repeat": 1, "busy": 4},
        "levels": [{"api_server_count": 2, "median": median}],
    }
    shown = sizing_report.render(document)
    assert "| 2           |               0.500 |                             - |" in shown
    assert "| 2           | API server |      20.0 | 5.00 |      20.0 | 5.00 |        6.00 |" in shown
    assert "| 2           |           8 |                    1.00 |    1.00 |  1.00 |              100% |" in shown
    panels = {panel.title: panel for panel in sizing_report.panels(document)}
    assert panels["memory of one API server"].series["USS after"] == [(2, 5.0)]


def test_a_picture_is_drawn_from_panels(tmp_path: Path) -> None:
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(errors.CannotPlot, match="needs matplotlib"):
            plot.require()
        return
    line = plot.Lines(
        title="l",
        x_label="x",
        y_label="y",
        series={"a": [(1, 0.5), (2, 3.0)]},
        x_scale="log",
        y_scale="log",
        references={"offline": 1.5},
        point_labels={"a": ["1", "2"]},
    )
    flat = plot.Lines(title="l", x_label="x", y_label="y", series={"a": [(1, 0.0)]}, y_scale="log")
    bars = plot.Bars(title="b", y_label="y", categories=["one", "a long category"], series={"s": [1.0, None]})
    path = tmp_path / "out.png"
    plot.draw(path, [line, flat, bars], title="t", footnote="f")
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["overhead", "embed", "mixed", "tokenize", "pool"])
def test_every_script_is_executable_and_says_what_it_does(name: str) -> None:
    script = SCRIPTS / f"bench_{name}"
    assert script.stat().st_mode & 0o111
    assert f"scripts/bench_{name}" in script.read_text()


@pytest.mark.parametrize("parse", [overhead.parse, embedding.parse])
def test_an_offline_model_is_for_a_url(parse: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--offline", "minilm"])
    assert "--offline is for --url" in capsys.readouterr().err


def test_a_model_of_its_own_keeps_its_own_tokenizer() -> None:
    assert mixed.parse([]).tokenizer == "qwen3"
    assert mixed.parse(["--model", "smollm2"]).tokenizer is None
    assert mixed.parse([]).engine_args == ("--step-ms", "5")
    assert sizing.parse([]).tokenizer == "minilm"
    assert overhead.parse(["--model", "smollm2"]).endpoint == "completions"

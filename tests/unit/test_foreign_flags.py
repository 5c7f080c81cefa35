"""Flags that people bring from vLLM and SGLang, and mistyped ones: each answer says what to do instead."""

from pathlib import Path

import pytest

from apiserver.flags import make_parsers, parse_engine, parse_serve


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line that says what is wrong; the one behind it says where to read on."""
    with pytest.raises(SystemExit) as end:
        parse_serve(make_parsers(), ["serve", *words])
    assert end.value.code == 2
    said, hint = capsys.readouterr().err.splitlines()
    assert hint == "Try 'apiserver serve --help'."
    return said


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        (("--tensor-parallel-size", "2"), "-- --tp-size 2"),
        (("--tp=2",), "-- --tp-size=2"),
        (("--gpu_memory_utilization", "0.9"), "-- --mem-fraction-static 0.9"),
        (("--trust-remote-code", "m2"), "-- --trust-remote-code"),
        (("--dtype", "bfloat16", "--port", "1", "-tp", "2"), "-- --dtype bfloat16 --tp-size 2"),
        (("--max-num-seqs",), "-- --max-running-requests"),
    ],
)
def test_a_flag_of_the_engine_is_told_its_place_and_sglangs_name(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], instead: str
) -> None:
    said = complaint(capsys, "m", *words)
    assert words[0].partition("=")[0] in said
    assert said.endswith(f": apiserver serve … {instead}")


def test_the_model_behind_such_a_flag_is_not_taken_for_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert complaint(capsys, "--tp", "2", "Qwen/Qwen3-8B").endswith(" -- --tp-size 2")


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("--uvicorn-log-level", "info"), "--uvicorn-log-level: here it is --log-level"),
        (("--disable-log-requests",), "--disable-log-requests: no need: "),
        (("--prot", "1"), "--prot: did you mean --port?"),
        (("--max_model_len", "9"), "--max_model_len: did you mean --max-model-len?"),
        (("--perfectly-unheard-of",), "--perfectly-unheard-of: there is no such flag"),
        (("m2",), "unexpected: m2"),
    ],
)
def test_other_flags_are_told_what_to_do_instead(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], advice: str
) -> None:
    assert complaint(capsys, "m", *words).startswith(f"apiserver serve: {advice}")


def test_the_engine_alone_gives_the_same_advice(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_engine(make_parsers(), ["engine", "m", "--listen", "tcp://*:1", "--tp", "2"])
    assert "apiserver engine … -- --tp-size 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("tensor_parallel_size: 2", "it is the engine's, so it goes under engine_args, as [--tp-size"),
        ("porrt: 1", "'porrt': did you mean port?"),
        ("tokenizer-mode: slow", "'tokenizer-mode': here it is --tokenizer-backend"),
        ("port:", "port has no value"),
        ("port: [1]", "port: [1] is not a valid value"),
        ("uds-mode: 888", "uds-mode: 888 is not a valid value"),
        ("max-n: 0", "max-n: must be at least 1, not 0"),
        ("engine_args: --tp-size 2", "engine_args must be a list of words"),
        ("engine_args: {tp-size: 2}", "engine_args must be a list of words"),
        ("engine_args: [--tp-size 2]", "engine_args: '--tp-size 2' is two words: write --tp-size, \"2\""),
        ("port: [", "line 2, column 1: no YAML: "),
        ("a: \x07", "c.yaml: unacceptable character #x0007"),
    ],
)
def test_a_file_gets_the_same_advice_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, advice: str
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"{text}\n")
    with pytest.raises(SystemExit) as end:
        parse_serve(make_parsers(), ["serve", "m", "--config", str(config)])
    assert end.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert advice in line


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    config = tmp_path / "c.yaml"
    if content is not None:
        config.write_bytes(content)
    with pytest.raises(SystemExit):
        parse_serve(make_parsers(), ["serve", "m", "--config", str(config)])
    assert capsys.readouterr().err.count("c.yaml") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--max-model-len", "-5"), "--max-model-len/--context-length: must be at least 2, not -5"),
        (("--max-model-len", "4k"), "'4k' is not a number"),
        (("--keep-alive-timeout", "nan"), "--keep-alive-timeout: must be at least 0, not nan"),
        (("--drain-timeout", "-1"), "--drain-timeout: must be at least 0, not -1"),
        (("--max-body-bytes", "0"), "--max-body-bytes: must be at least 1, not 0"),
        (("--port", "-1"), "--port: must be at least 0, not -1"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    assert complaint(capsys, "m", *words).endswith(why)

"""What `engine_bridge.sglang_flags` says before SGLang is imported, held against SGLang's own parser."""

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from engine_bridge.engines import EngineError
from engine_bridge.engines.sglang_arguments import PINNED_VERSION, parse
from engine_bridge.sglang_flags import DESCRIPTION, complaint, objection, read
from tests.sglang.flags import describe, sglangs_parser, text_of
from tests.sglang.tiny_models import CPU_FLAGS, directory

OURS = ["--model-path", "m", "--skip-tokenizer-init", "--incremental-streaming-output"]
WORDS = ("2", "-1", "0.5", "none", "auto", "x", "{}", "a=b", "", "-x", "--", "--en", "--no-such-flag", "--disable")
CASES = 600
SEED = 20261130


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return sglangs_parser()


def test_the_file_says_what_this_sglangs_parser_was_told() -> None:
    description = describe()
    assert description.version == PINNED_VERSION
    assert _parsed(DESCRIPTION.read_text(encoding="utf-8")) == _parsed(text_of(description)), (
        "see tests/sglang/flags.py"
    )


def _parsed(text: str) -> Any:
    """SGLang's parsers of answers register themselves as they are imported, so their names come in any order."""

    def in_order(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "choices": sorted(values["choices"])} if "choices" in values else values

    return json.loads(text, object_hook=in_order)


def test_every_option_passes_with_a_value_that_sglang_takes(parser: argparse.ArgumentParser) -> None:
    description, tried = read(DESCRIPTION), 0
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction):
            forms = list(_good_words(action))
            assert complaint(description, [word for words in forms for word in words]) is None, action.option_strings
            tried += len(forms)
    assert tried > 1000


def _good_words(action: argparse.Action) -> Iterator[list[str]]:
    """Each name of an option, with values, as two words and as one."""
    for name in action.option_strings:
        if action.nargs == 0:
            yield [name]
            continue
        default = "3" if action.type is int else "0.5" if action.type is float else "word"
        for value in [str(choice) for choice in action.choices] if action.choices else [default]:
            yield [name, value]
            if name.startswith("--"):
                yield [f"{name}={value}"]
            if action.nargs in ("+", "*"):
                yield [name, value, value]
        if action.nargs in ("?", "*"):
            yield [name]


@pytest.mark.parametrize("only_plain", [True, False])
def test_whatever_it_refuses_sglang_refuses_in_the_same_words(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str], only_plain: bool
) -> None:
    """Of two faults, though, it may name the second, if the first is of a type of SGLang's own."""
    description, chance, refused = read(DESCRIPTION), random.Random(SEED), 0
    actions = [action for action in parser._actions if not only_plain or _is_plain(action)]
    names = [name for action in actions for name in action.option_strings]
    choices = [str(choice) for action in actions for choice in action.choices or ()]
    for _ in range(CASES):
        words = [_word(chance, names, choices) for _ in range(chance.randint(1, 5))]
        said = complaint(description, words)
        if said is not None:
            sglang_says = _argparse_says(parser, [*OURS, *words], capsys)
            assert sglang_says == said if only_plain else sglang_says is not None, words
            refused += 1
    assert refused > CASES / 4


def _is_plain(action: argparse.Action) -> bool:
    is_ordered = action.choices is None or isinstance(action.choices, list | tuple)
    return is_ordered and action.type in (None, str, int, float) and action.dest != "lora_paths"


def _word(chance: random.Random, names: list[str], choices: list[str]) -> str:
    word, value = chance.choice(names), chance.choice((chance.choice(WORDS), chance.choice(choices)))
    shapes = (word, word, value, value, f"{word}={value}", word[: chance.randint(2, len(word))])
    return chance.choice(shapes)


def _argparse_says(parser: argparse.ArgumentParser, words: list[str], capsys: pytest.CaptureFixture[str]) -> str | None:
    """SGLang's parser alone, its actions included; None if it takes the words."""
    try:
        parser.parse_args(words)
    except SystemExit:
        return capsys.readouterr().err.splitlines()[-1]
    return None


@pytest.mark.parametrize(
    "words",
    ["--no-such-flag", "stray", "--tp-size two", "--tp", "--grammar-backend no", "--enable", "--device=cpu --x=1"],
)
def test_it_is_the_sentence_that_a_start_would_end_with(words: str) -> None:
    with pytest.raises(EngineError) as raised:
        parse("m", words.split())
    assert objection(words.split()) == str(raised.value)


@pytest.mark.parametrize("words", ["--no-such-flag", "--tp-size two"])
@pytest.mark.parametrize("command", ["serve", "engine"])
def test_a_wrong_flag_ends_the_start_before_anything_is_loaded(command: str, words: str) -> None:
    where = ("--port", "0") if command == "serve" else ("--listen", "tcp://127.0.0.1:0")
    start = [sys.executable, "-m", "apiserver", command, str(directory("llama")), "--engine", "sglang", *where]
    # Importing SGLang takes an import of torch, which then would say so.
    noisy = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    ended = subprocess.run([*start, "--", *CPU_FLAGS, *words.split()], env=noisy, capture_output=True, text=True)
    assert ended.returncode == 3
    assert str(objection(words.split())) in ended.stderr
    lines = ended.stderr.splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert "apiserver" in imported
    assert not imported & {"torch", "sglang", "transformers"}
    assert "tokenizer backend" not in ended.stderr

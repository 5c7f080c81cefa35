"""Words for SGLang, looked at before SGLang is: here with a package of that name which tells argparse four things."""

from pathlib import Path

import msgspec
import pytest

from apiserver.engine_arguments import check
from apiserver.launch_error import LaunchError
from engine_bridge.sglang_flags import DESCRIPTION, Description, Flag, complaint, digest_of, objection, read

FILES = ["srt/server_args.py", "srt/choices.py"]
FLAGS = [
    Flag(["-h", "--help"], nargs=0, is_help=True),
    Flag(["--tp-size", "--tensor-parallel-size"], type="int"),
    Flag(["--grammar-backend"], choices=["xgrammar", "none"]),
    Flag(["--lora-paths"], nargs="*"),
    Flag(["--mem-fraction-static"], type="float"),
    Flag(["--config"]),
]
PROG = "sglang serve: error: "


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A description of a package that is on the path, and cannot be imported."""
    package = tmp_path / "site" / "sglang"
    for name in FILES:
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(f"# {name}")
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(package.parent)
    digest = digest_of(package, FILES)
    assert digest is not None
    described = tmp_path / "flags.json"
    described.write_bytes(msgspec.json.encode(Description("sglang serve", "1.0", FILES, digest, FLAGS)))
    return described


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--no-such-flag", "unrecognized arguments: --no-such-flag"),
        ("--tp-size 2 stray", "unrecognized arguments: stray"),
        ("--tp-size two", "argument --tp-size/--tensor-parallel-size: invalid int value: 'two'"),
        ("--tensor-parallel-size=two", "argument --tp-size/--tensor-parallel-size: invalid int value: 'two'"),
        ("--tp-size", "argument --tp-size/--tensor-parallel-size: expected one argument"),
        ("--mem-fraction-static lots", "argument --mem-fraction-static: invalid float value: 'lots'"),
        ("--tp 2 --nope --help", None),
        ("--tp two --help", "argument --tp-size/--tensor-parallel-size: invalid int value: 'two'"),
        ("--tp-size=2 --mem 0.8 --grammar-backend none --lora-paths a b=c", None),
        ("--lora-paths", None),
        ("--config file.yaml --known-to-a-file", None),
        ("", None),
    ],
)
def test_the_words_are_argparses_own(described: Path, words: str, sentence: str | None) -> None:
    assert objection(words.split(), described=described) == (None if sentence is None else PROG + sentence)


def test_a_value_that_is_no_choice_is_named(described: Path) -> None:
    said = objection(["--grammar-backend", "no"], described=described)
    assert said is not None
    assert said.startswith(f"{PROG}argument --grammar-backend: invalid choice: 'no' (choose from ")


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_said_of_an_sglang_that_is_another_than_we_know(described: Path, name: str) -> None:
    file = described.parent / "site" / "sglang" / name
    file.write_text("# with one flag more")
    assert objection(["--no-such-flag"], described=described) is None
    file.unlink()
    assert objection(["--no-such-flag"], described=described) is None


def test_nothing_is_said_where_there_is_no_sglang(described: Path) -> None:
    (described.parent / "site" / "sglang").rename(described.parent / "site" / "elsewhere")
    assert objection(["--no-such-flag"], described=described) is None


@pytest.mark.parametrize("group", ["sglang.srt.platforms", "sglang.srt.plugins"])
def test_nothing_is_said_where_a_plugin_may_have_added_choices(described: Path, group: str) -> None:
    plugin = described.parent / "site" / "plugin-1.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text(f"[{group}]\nmine = plugin:activate\n")
    assert objection(["--grammar-backend", "mine"], described=described) is None


def test_the_description_that_we_bring_is_a_parser() -> None:
    description = read(DESCRIPTION)
    assert len(description.flags) > 500
    assert complaint(description, ["--model-path", "m", "--tp", "2", "--skip-tokenizer-init"]) is None
    assert complaint(description, ["--no-such-flag"]) == f"{PROG}unrecognized arguments: --no-such-flag"


@pytest.mark.parametrize("engine", ["sglang", "auto"])
def test_a_pool_ends_with_the_sentence(described: Path, engine: str) -> None:
    with pytest.raises(LaunchError, match="unrecognized arguments: --no-such-flag"):
        check(engine, "some/model", ["--no-such-flag"], described=described)


def test_a_pool_goes_on_with_good_words_none_and_those_for_another_engine(described: Path) -> None:
    check("sglang", "some/model", ["--tp-size", "2"], described=described)
    check("sglang", "some/model", [], described=described)
    check("sim", "sim", ["--no-such-flag"], described=described)
    check("auto", "smollm2", ["--no-such-flag"], described=described)


def test_words_for_a_model_that_there_is_not_are_no_reason_to_go_on(described: Path) -> None:
    with pytest.raises(LaunchError, match="no such model"):
        check("auto", "./nowhere", ["--tp-size", "2"], described=described)

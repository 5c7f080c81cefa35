"""What the command lines of the benchmarks have in common: kinds of values, the server, the outcome."""

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

DESCRIPTIONS = {
    "sim": "the simulated engine",
    "minilm": "a small embedding model",
    "smollm2": "a small chat model",
}


def positive(text: str) -> int:
    """A count of at least 1."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def not_negative(text: str) -> int:
    """A count that may be 0."""
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def positive_float(text: str) -> float:
    """A finite number above 0."""
    if not 0 < (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def list_of(convert: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Values between commas."""

    def values(text: str) -> list[Any]:
        return [convert(part) for part in text.split(",")]

    return values


def one_of(*choices: str) -> Callable[[str], str]:
    """A word of these; for lists, where argparse's own `choices` does not look inside."""

    def value(text: str) -> str:
        if text not in choices:
            raise argparse.ArgumentTypeError(f"{text} is not one of {', '.join(choices)}")
        return text

    return value


def words(text: str) -> tuple[str, ...]:
    """Arguments for another command, as a shell would split them."""
    return tuple(shlex.split(text))


def add_server(
    parser: argparse.ArgumentParser, *, model: str, counts: list[int] | None = None, tokenizer: str | None = None
) -> None:
    """Which server: one that runs (`--url`), or a pool of ours that is started for the measurement.

    With `counts`, `--api-server-count` takes a list, of which that is the default.
    """
    group = parser.add_argument_group("server: one that runs, or else a pool of ours, started and stopped")
    group.add_argument("--url", help="a running server with OpenAI's endpoints: ours, vLLM, SGLang")
    group.add_argument("--api-key", help="sent as a bearer token; never written to the JSON")
    group.add_argument("--server-pid", type=positive, help="the running server's first process, to count its CPU")
    group.add_argument(
        "--model",
        help="with --url: the name in requests (default: the first of /v1/models); else what our pool serves: "
        f"{', '.join(DESCRIPTIONS)} or a path (default {model})",
    )
    if counts is None:
        group.add_argument("--api-server-count", type=positive, metavar="N", help="default: the pool's own")
    else:
        shown = ",".join(map(str, counts))
        group.add_argument(
            "--api-server-count", type=list_of(positive), default=counts, metavar="N,…", help=f"default {shown}"
        )
    group.add_argument(
        "--tokenizer",
        default=tokenizer,
        help="byte, minilm, qwen3 (made once from a package) or a directory with a tokenizer.json; "
        f"default: {tokenizer or 'the model its own'}",
    )
    group.add_argument("--pool-flags", type=words, default=(), metavar="'…'", help="more flags for apiserver serve")
    group.add_argument("--engine-args", type=words, default=(), metavar="'…'", help="arguments for the engine")
    parser.set_defaults(default_model=model)


def add_outcome(parser: argparse.ArgumentParser, *, repeat: int = 3, plots: bool = True) -> argparse._ArgumentGroup:
    """How often, and where the numbers go."""
    group = parser.add_argument_group("outcome")
    group.add_argument(
        "--repeat", type=positive, default=repeat, help=f"runs, alternating; the median is shown (default {repeat})"
    )
    group.add_argument("--label", default="", help="a name for this measurement, in the table and the JSON")
    group.add_argument("--json", type=Path, metavar="FILE", help="write settings, machine and every run")
    if plots:
        group.add_argument("--plot", type=Path, metavar="FILE.png", help="draw it (needs matplotlib: the extra bench)")
    else:
        parser.set_defaults(plot=None)
    return group


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options as they may be shared: without the key, and without paths of this machine."""
    hidden = ("api_key", "json", "plot", "label", "default_model", "server_pid")
    return {key: _shareable(value) for key, value in vars(options).items() if key not in hidden}


def _shareable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_shareable(part) for part in value]
    # A hub id has a slash too, and says nothing of this machine.
    is_path = isinstance(value, Path) or (isinstance(value, str) and value.startswith(("/", "./", "../", "~")))
    return Path(value).name if is_path else value

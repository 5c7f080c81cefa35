"""SGLang's flags, known before SGLang is: a wrong one is said in the first second, not after five seconds of imports.

SGLang's own parser has the last word, always. `sglang_flags.json` says what argparse was told there, and a parser made
of it gives SGLang's own sentences. It counts only for an SGLang whose files that tell argparse are the very ones it was
made of, byte for byte, and it is silent where SGLang might accept: types of its own, choices that plugins may add to.
`tests/sglang/flags.py` makes the file anew, and the tests beside it hold it against SGLang's parser.
"""

import argparse
import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

import msgspec

DESCRIPTION = Path(__file__).with_name("sglang_flags.json")
_TYPES: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "": str}
_PLUGINS = ("sglang.srt.platforms", "sglang.srt.plugins")


class Flag(msgspec.Struct, frozen=True, omit_defaults=True):
    """What argparse is told of one option."""

    names: list[str]
    nargs: int | str | None = None
    type: str = ""
    """int or float; empty if any word will do, or if only SGLang can tell."""
    choices: list[str | int | float] | None = None
    is_help: bool = False


class Description(msgspec.Struct, frozen=True):
    """All options of SGLang's parser, and the files that they were read of."""

    prog: str
    version: str
    files: list[str]
    """In SGLang's package, in this order."""
    digest: str
    flags: list[Flag]


def objection(arguments: Sequence[str], *, described: Path = DESCRIPTION) -> str | None:
    """SGLang's own sentence, if it is certain to refuse these words. None if it may take them, or is not here, or is
    another than we know."""
    description = read(described)
    package = _package()
    if package is None or digest_of(package, description.files) != description.digest:
        return None
    sentence = complaint(description, arguments)
    return None if sentence is None or any(entry_points(group=group) for group in _PLUGINS) else sentence


def read(described: Path) -> Description:
    return msgspec.json.decode(described.read_bytes(), type=Description)


def _package() -> Path | None:
    """Where SGLang is; it is not imported."""
    spec = importlib.util.find_spec("sglang")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def digest_of(package: Path, files: Sequence[str]) -> str | None:
    """Of these files' bytes; None if one cannot be read."""
    digest = hashlib.sha256()
    try:
        for name in files:
            digest.update((package / name).read_bytes())
    except OSError:
        return None
    return digest.hexdigest()


def complaint(description: Description, arguments: Sequence[str]) -> str | None:
    """What argparse, told so, says is wrong with these words."""
    if "--config" in arguments:
        return None  # SGLang puts a file's settings among the words before it reads them
    parser = _Parser(prog=description.prog, add_help=False)
    for flag in description.flags:
        action = _Help if flag.is_help else _Option
        parser.add_argument(
            *flag.names, dest="_", action=action, nargs=flag.nargs, type=_TYPES[flag.type], choices=flag.choices
        )
    try:
        parser.parse_args(arguments)
    except _Refused as refused:
        return f"{description.prog}: error: {refused}"
    except _Helped:
        pass
    return None


class _Refused(Exception):
    """The message is argparse's."""


class _Helped(Exception):
    """SGLang answers this, and looks no further."""


class _Option(argparse.Action):
    """Any action: what argparse refuses depends on the option's shape, and not on what is done with its value."""

    def __call__(self, *_: Any) -> None:
        """The value is SGLang's."""


class _Help(argparse.Action):
    def __call__(self, *_: Any) -> NoReturn:
        raise _Helped


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Refused(message)

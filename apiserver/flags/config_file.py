"""A configuration file: the settings of a command, by the names of its flags."""

import argparse
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

import yaml

from apiserver.flags.foreign import about, is_of_engine, sglangs_name


def read_config(serve: argparse.ArgumentParser, file: str) -> tuple[dict[str, Any], list[str]]:
    """The file's settings by destination, and its `engine_args`. Exits naming the key that is wrong."""
    try:
        loaded: Any = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        serve.exit(2, f"{serve.prog}: --config {file}: {_in_a_line(error)}\n")
    if not isinstance(loaded, dict):
        serve.exit(2, f"{serve.prog}: {file} must hold a mapping of flags to values\n")
    settings: dict[str, Any] = {}
    engine_arguments: list[str] = []
    flags = {option.lstrip("-"): action for action in serve._actions for option in action.option_strings}
    for key, value in cast(dict[str, Any], loaded).items():
        name = str(key).replace("_", "-")
        if name == "engine-args":
            engine_arguments = _words_for_engine(serve, file, value)
        elif name not in flags or name in ("config", "help"):
            serve.exit(2, f"{serve.prog}: {file}: unknown setting {key!r}: {_advice(name, flags)}\n")
        else:
            settings[flags[name].dest] = _checked(serve, flags[name], file, str(key), value)
    return settings, engine_arguments


def _words_for_engine(serve: argparse.ArgumentParser, file: str, value: Any) -> list[str]:
    """A list of words; what people write instead would reach the engine as something else."""
    if not isinstance(value, list):
        serve.exit(2, f'{serve.prog}: {file}: engine_args must be a list of words, as in [--tp-size, "2"]\n')
    words = [str(word) for word in cast(list[Any], value)]
    for word in words:
        if re.match(r"--[\w-]+\s", word):
            flag, rest = word.split(maxsplit=1)
            serve.exit(2, f'{serve.prog}: {file}: engine_args: {word!r} is two words: write {flag}, "{rest}"\n')
    return words


def _advice(name: str, flags: Collection[str]) -> str:
    if is_of_engine(name):
        return f"it is the engine's, so it goes under engine_args, as [--{sglangs_name(name)}, …]"
    return about(name, flags)


def _in_a_line(error: OSError | UnicodeDecodeError | yaml.YAMLError) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: no YAML: {error.problem}"
    return str(error).splitlines()[0]


def _checked(serve: argparse.ArgumentParser, action: argparse.Action, file: str, key: str, value: Any) -> Any:
    """A value of the file as the flag's own type would read it."""
    if value is None:
        serve.exit(2, f"{serve.prog}: {file}: {key} has no value\n")
    if action.const is True:  # a switch
        if not isinstance(value, bool):
            serve.exit(2, f"{serve.prog}: {file}: {key} must be true or false\n")
        return value
    if action.nargs == "+":
        return [str(word) for word in cast(list[Any], value)] if isinstance(value, list) else [str(value)]
    convert = cast(Any, action.type) or str
    try:
        converted = convert(value)
    except argparse.ArgumentTypeError as error:
        serve.exit(2, f"{serve.prog}: {file}: {key}: {error}\n")
    except (TypeError, ValueError):
        serve.exit(2, f"{serve.prog}: {file}: {key}: {value!r} is not a valid value\n")
    if action.choices is not None and converted not in action.choices:
        serve.exit(2, f"{serve.prog}: {file}: {key} must be one of {', '.join(map(str, action.choices))}\n")
    return converted

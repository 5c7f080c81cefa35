"""A configuration file: the settings of a command, by the names of its flags."""

import argparse
from pathlib import Path
from typing import Any, cast

import yaml


def read_config(serve: argparse.ArgumentParser, file: str) -> tuple[dict[str, Any], list[str]]:
    """The file's settings by destination, and its `engine_args`. Exits naming the key that is wrong."""
    try:
        loaded: Any = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        serve.exit(2, f"{serve.prog}: --config {file}: {error}\n")
    if not isinstance(loaded, dict):
        serve.exit(2, f"{serve.prog}: {file} must hold a mapping of flags to values\n")
    settings: dict[str, Any] = {}
    engine_arguments: list[str] = []
    flags = {option.lstrip("-"): action for action in serve._actions for option in action.option_strings}
    for key, value in cast(dict[str, Any], loaded).items():
        name = str(key).replace("_", "-")
        if name == "engine-args":
            engine_arguments = [str(word) for word in cast(list[Any], value)]
        elif name not in flags or name in ("config", "help"):
            serve.exit(2, f"{serve.prog}: {file}: unknown setting {key!r}\n")
        else:
            settings[flags[name].dest] = _checked(serve, flags[name], file, str(key), value)
    return settings, engine_arguments


def _checked(serve: argparse.ArgumentParser, action: argparse.Action, file: str, key: str, value: Any) -> Any:
    """A value of the file as the flag's own type would read it."""
    if action.const is True:  # a switch
        if not isinstance(value, bool):
            serve.exit(2, f"{serve.prog}: {file}: {key} must be true or false\n")
        return value
    if action.nargs == "+":
        return [str(word) for word in cast(list[Any], value)] if isinstance(value, list) else [str(value)]
    convert = cast(Any, action.type) or str
    try:
        converted = convert(value)
    except (TypeError, ValueError):
        serve.exit(2, f"{serve.prog}: {file}: {key}: {value!r} is not a valid value\n")
    if action.choices is not None and converted not in action.choices:
        serve.exit(2, f"{serve.prog}: {file}: {key} must be one of {', '.join(map(str, action.choices))}\n")
    return converted

"""`apiserver engine`: an engine core alone, that pools on other machines use. This process becomes it."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from apiserver import child, models
from apiserver.flags.engine import EngineSettings
from engine_bridge.address import BadAddress, to_listen
from engine_bridge.keys import KeyProblem, read_server_keys


def run(settings: EngineSettings) -> int:
    """The exit code of a start that failed; otherwise it does not return."""
    try:
        _check(settings)
        argv = core_argv(settings)
    except (models.ModelError, KeyProblem, BadAddress) as error:
        sys.stderr.write(f"apiserver engine: {error}\n")
        return child.EXIT_CANNOT_START
    return _become(argv)


def _check(settings: EngineSettings) -> None:
    """Before anything is fetched or loaded."""
    to_listen(settings.listen, with_keys=settings.keys is not None)
    if settings.keys is not None:
        read_server_keys(Path(settings.keys))


def core_argv(settings: EngineSettings) -> list[str]:
    """The core's command line. Raises ModelError."""
    engine, path, ours = settings.engine, settings.model, list[str]()
    if engine != "sim":
        model = models.resolve(settings.model, engine=None if engine == "auto" else engine)
        engine, path = model.engine, model.path
        if model.demo is not None:
            models.fetch(model.demo.name)
            ours += model.demo.engine_arguments
    if settings.max_model_len is not None:
        ours += ["--context-length" if engine == "sglang" else "--max-model-len", str(settings.max_model_len)]
    command = [sys.executable, "-m", "engine_bridge", "--engine", engine, "--model", path, "--address", settings.listen]
    command += ["--link-timeout", f"{settings.link_timeout:g}"]
    if settings.keys is not None:
        command += ["--keys", settings.keys]
    return [*command, "--", *ours, *settings.engine_arguments]


def _become(argv: Sequence[str]) -> NoReturn:
    sys.stdout.flush()
    os.execv(argv[0], list(argv))

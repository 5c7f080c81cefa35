"""What stands after `--`, looked at before a web framework, a tokenizer or an engine is loaded, which takes time."""

from collections.abc import Sequence
from pathlib import Path

from apiserver import models
from apiserver.launch_error import LaunchError
from engine_bridge import sglang_flags


def check(engine: str, model: str, arguments: Sequence[str], *, described: Path = sglang_flags.DESCRIPTION) -> None:
    """Raises LaunchError, in the engine's own words, if it is certain to refuse these. `described` are SGLang's flags.

    The other engines read them within their own first second.
    """
    if not arguments:
        return
    try:
        name = models.resolve(model).engine if engine == "auto" else engine
    except models.ModelError as error:
        raise LaunchError(str(error)) from error
    objection = sglang_flags.objection(arguments, described=described) if name == "sglang" else None
    if objection is not None:
        raise LaunchError(objection)

"""`apiserver keys DIR`: the CURVE keys of an engine and of the pools that use it over a network."""

import sys
from collections.abc import Sequence
from pathlib import Path

from engine_bridge.keys import ENGINE, KeyProblem, make_keys


def run(directory: str, clients: Sequence[str]) -> int:
    """Returns the exit code."""
    try:
        made = make_keys(Path(directory), clients)
    except KeyProblem as error:
        sys.stderr.write(f"apiserver keys: {error}\n")
        return 3
    for path in made:
        use = (
            f"for the engine's node:  apiserver engine MODEL --listen tcp://HOST:PORT --keys {path}"
            if path.name == ENGINE
            else f"for the node of {path.name}:  apiserver serve MODEL --engine-address tcp://HOST:PORT --keys {path}"
        )
        sys.stdout.write(f"{path}  {use}\n")
    return 0

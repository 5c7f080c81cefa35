"""The command lines of `apiserver engine` and `apiserver keys`."""

import argparse
from dataclasses import dataclass

from apiserver.flags.types import at_least


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Everything that `apiserver engine` was told."""

    model: str
    engine: str
    listen: str
    keys: str | None
    max_model_len: int | None
    link_timeout: float
    engine_arguments: tuple[str, ...]


def add_engine(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Load a model and serve it to pools of API servers on other machines (apiserver serve --engine-address). "
        "What stands after -- goes to the engine untouched."
    )
    parser.add_argument("model_positional", nargs="?", metavar="MODEL", help="demo model, path, or hub id")
    parser.add_argument("--config", metavar="FILE.yaml", help="settings, by the names of these flags; flags win")
    parser.add_argument("--model", "--model-path", help="the same as MODEL")
    parser.add_argument(
        "--listen", metavar="tcp://HOST:PORT", help="HOST is a number of this machine, or * for all of them"
    )
    parser.add_argument("--keys", metavar="DIR", help="the engine's, made by apiserver keys; needed off the loopback")
    parser.add_argument("--engine", default="auto", help="as for apiserver serve; default: what fits the model")
    text = "prompt plus output tokens, at most"
    parser.add_argument("--max-model-len", "--context-length", type=at_least(2), metavar="N", help=text)
    parser.add_argument(
        "--link-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="requests of an API server that has been silent for so long are aborted",
    )


def add_keys(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Make CURVE key pairs: DIR/engine for the engine's node, DIR/NAME for the node of each pool. "
        "Run it again with new names for more pools; nothing that exists is overwritten."
    )
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--client", nargs="+", default=["pool"], metavar="NAME", help="default: one, named pool")

"""What the simulated engine is told: its size, its time model, its faults."""

import math
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from engine_bridge.engines.option_parser import OptionParser


class FaultKind(StrEnum):
    CRASH = "crash"  # the process dies of SIGKILL
    STALL = "stall"  # the loop turns, but no output comes any more
    HANG = "hang"  # the loop itself stands still
    SLOW = "slow"  # this step takes AFTER seconds
    REFUSE = "refuse"  # the queue is "full" for this request
    ERROR = "error"  # this request fails after AFTER tokens
    NAN = "nan"  # its vector holds a NaN


@dataclass(frozen=True, slots=True)
class Fault:
    """`KIND:TOKEN_ID[:AFTER]`; AFTER is a count of output tokens, or seconds for `slow`."""

    kind: FaultKind
    token_id: int
    after: float = 0

    @classmethod
    def parse(cls, text: str) -> "Fault":
        kind, token_id, *after = text.split(":")
        return cls(FaultKind(kind), int(token_id), float(after[0]) if after else 0)


@dataclass(frozen=True, slots=True)
class SimOptions:
    task: str = "generate"
    mode: str = "seeded"
    vocab_size: int = 259
    eos_token_id: int = 258
    max_model_len: int = 40_960
    dimensions: int = 384
    tokens_per_step: int = 1
    step_ms: float = 0.0
    step_ms_per_request: float = 0.0
    prefill_tokens_per_second: float = math.inf
    max_running: int = 256
    max_waiting: int = 0  # 0 = no limit
    load_seconds: float = 0.0
    faults: tuple[Fault, ...] = ()
    arrival_log: Path | None = None
    constraints: bool = False  # claims that answers keep them; it is the script that must


def parse_options(arguments: list[str]) -> SimOptions:
    """From the command line."""
    defaults = SimOptions()
    parser = OptionParser(prog="--engine sim --", description="The simulated engine's options.")
    parser.add_argument("--task", choices=("generate", "embed"), default=defaults.task)
    parser.add_argument("--mode", choices=("seeded", "echo"), default=defaults.mode)
    parser.add_argument("--vocab-size", type=int, default=defaults.vocab_size)
    parser.add_argument("--eos-token-id", type=int, default=defaults.eos_token_id)
    parser.add_argument("--max-model-len", type=int, default=defaults.max_model_len)
    parser.add_argument("--dimensions", type=int, default=defaults.dimensions)
    parser.add_argument("--tokens-per-step", type=int, default=defaults.tokens_per_step)
    parser.add_argument("--step-ms", type=float, default=defaults.step_ms)
    parser.add_argument("--step-ms-per-request", type=float, default=defaults.step_ms_per_request)
    parser.add_argument("--prefill-tokens-per-second", type=float, default=defaults.prefill_tokens_per_second)
    parser.add_argument("--max-running", type=int, default=defaults.max_running)
    parser.add_argument("--max-waiting", type=int, default=defaults.max_waiting)
    parser.add_argument("--load-seconds", type=float, default=defaults.load_seconds)
    parser.add_argument("--fault", type=Fault.parse, action="append", default=[], help="KIND:TOKEN_ID[:AFTER]")
    parser.add_argument("--arrival-log", type=Path, metavar="FILE", help="write a line of JSON for each request")
    parser.add_argument("--constraints", action="store_true", help="take schemas and grammars, and trust the script")
    options = parser.parse_args(arguments)
    values = vars(options)
    values["faults"] = tuple(values.pop("fault"))
    return SimOptions(**values)

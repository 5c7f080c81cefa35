"""The command line of `scripts/bench_serving`."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchlib.endpoints import PATHS


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked; what is left open is decided here."""
    parser = argparse.ArgumentParser(prog="bench_serving", description="Load test of an OpenAI-compatible server.")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default %(default)s)")
    parser.add_argument("--endpoint", choices=[*PATHS], default="chat")
    parser.add_argument("--model", help="default: the first of /v1/models")
    parser.add_argument("--api-key", help="sent as a bearer token; never written to the JSON")
    parser.add_argument("--label", default="", help="a name for this measurement, in the table and the JSON")

    what = parser.add_argument_group("requests")
    what.add_argument("--input-tokens", type=_positive, default=256, metavar="N", help="per prompt (default 256)")
    what.add_argument("--output-tokens", type=_positive, default=32, metavar="N", help="per request (default 32)")
    what.add_argument("--stream", action=argparse.BooleanOptionalAction, default=True)
    what.add_argument("--prompt-ids", action="store_true", help="send token ids (not to chat)")
    what.add_argument(
        "--prompt-id-range", type=_id_range, default=(1000, 8000), metavar="LOW-HIGH", help="default 1000-8000"
    )
    what.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of prompts and arrivals; a prefix cache knows the prompts of the same seed",
    )

    load = parser.add_argument_group("load")
    amount = load.add_mutually_exclusive_group()
    amount.add_argument("--requests", type=_positive, metavar="N", help="per run (default 256)")
    amount.add_argument("--duration", type=_positive_float, metavar="SECONDS", help="per run; what has begun is ended")
    load.add_argument(
        "--prompts",
        type=_positive,
        metavar="N",
        help="different prompts per run, sent in turn (default: as many as requests; 1024 with --duration)",
    )
    kind = load.add_mutually_exclusive_group()
    kind.add_argument("--concurrency", type=_list_of(_positive), default=[1, 16, 64], help="default 1,16,64")
    kind.add_argument("--rate", type=_list_of(_positive_float), help="requests/s at random (Poisson); a list, in turn")
    load.add_argument("--repeat", type=_positive, default=3, help="runs per load, of which the median is shown (3)")
    load.add_argument("--warmup", type=_not_negative, default=8, metavar="N", help="requests before each run (8)")
    load.add_argument("--timeout", type=_positive_float, default=300.0, metavar="SECONDS", help="per request")

    outcome = parser.add_argument_group("outcome")
    outcome.add_argument("--server-pid", type=_positive, help="the server's first process; default: as GET /pool says")
    outcome.add_argument("--json", type=Path, metavar="FILE", help="write settings, machine and every run")
    outcome.add_argument("--allow-failures", action="store_true", help="exit with 0 although requests failed")

    options = parser.parse_args(arguments)
    if options.prompt_ids and options.endpoint == "chat":
        parser.error("--prompt-ids needs --endpoint completions or embeddings")
    if options.prompt_ids and options.prompt_id_range[0] >= options.prompt_id_range[1]:
        parser.error("--prompt-id-range is empty")
    if options.endpoint == "embeddings":
        options.stream = False
    if options.rate is not None:
        options.concurrency = None
    if options.requests is None and options.duration is None:
        options.requests = 256
    return options


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _not_negative(text: str) -> int:
    if (value := int(text)) < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _positive_float(text: str) -> float:
    if not 0 < (value := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def _list_of(convert: Callable[[str], float]) -> Callable[[str], list[float]]:
    def values(text: str) -> list[float]:
        return [convert(part) for part in text.split(",")]

    return values


def _id_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return int(low), int(high)

"""The command line of `scripts/bench_serving`."""

import argparse
from collections.abc import Sequence

from benchlib.arguments import (
    add_outcome,
    add_server,
    list_of,
    not_negative,
    positive,
    positive_float,
)
from benchlib.endpoints import PATHS


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line, checked; what is left open is decided here."""
    parser = argparse.ArgumentParser(prog="bench_serving", description="Load test of an OpenAI-compatible server.")
    add_server(parser, model="sim")
    _add_requests(parser)
    _add_load(parser)
    add_outcome(parser).add_argument(
        "--allow-failures", action="store_true", help="exit with 0 although requests failed"
    )
    options = parser.parse_args(arguments)
    _decide(parser, options)
    return options


def _add_requests(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("requests")
    what.add_argument("--endpoint", choices=[*PATHS], help="default: chat; for minilm embeddings")
    what.add_argument("--input-tokens", type=positive, default=256, metavar="N", help="per prompt (default 256)")
    what.add_argument("--output-tokens", type=positive, default=32, metavar="N", help="per request (default 32)")
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


def _add_load(parser: argparse.ArgumentParser) -> None:
    load = parser.add_argument_group("load")
    amount = load.add_mutually_exclusive_group()
    amount.add_argument("--requests", type=positive, metavar="N", help="per run (default: 4 a client, at least 128)")
    amount.add_argument("--duration", type=positive_float, metavar="SECONDS", help="per run; what has begun is ended")
    load.add_argument(
        "--prompts",
        type=positive,
        metavar="N",
        help="different prompts per run, sent in turn (default: as many as requests; 1024 with --duration)",
    )
    kind = load.add_mutually_exclusive_group()
    kind.add_argument(
        "--concurrency",
        type=list_of(positive),
        default=[1, 16, 64, 256],
        help="default 1,16,64,256",
    )
    kind.add_argument("--rate", type=list_of(positive_float), help="requests/s at random (Poisson); a list, in turn")
    load.add_argument("--warmup", type=not_negative, default=8, metavar="N", help="requests before each run (8)")
    load.add_argument("--timeout", type=positive_float, default=300.0, metavar="SECONDS", help="per request")


def _decide(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """What is left open; exits where the options contradict each other."""
    if options.endpoint is None:
        options.endpoint = "embeddings" if options.model == "minilm" else "chat"
    if options.prompt_ids and options.endpoint == "chat":
        parser.error("--prompt-ids needs --endpoint completions or embeddings")
    if options.prompt_ids and options.prompt_id_range[0] >= options.prompt_id_range[1]:
        parser.error("--prompt-id-range is empty")
    if options.endpoint == "embeddings":
        options.stream = False
    if options.rate is not None:
        options.concurrency = None


def _id_range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return int(low), int(high)

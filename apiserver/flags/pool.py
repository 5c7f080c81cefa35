"""The flags about the API servers as processes: how many, in what order they work, where, and how they end."""

import argparse

from apiserver.flags.types import at_least


def add_pool(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("pool")
    group.add_argument(
        "--api-server-count",
        "-asc",
        "--tokenizer-worker-num",
        type=int,
        default=4,
        metavar="N",
        help="processes that speak HTTP and tokenize; default 4",
    )
    group.add_argument(
        "--api-server-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="replace an API server whose event loop has stood still for so long; default 30",
    )
    group.add_argument(
        "--max-requests-per-worker",
        type=int,
        default=0,
        metavar="N",
        help="replace an API server that has served N requests (and up to a tenth more); 0, the default: never",
    )
    group.add_argument(
        "--preprocess-order",
        choices=("arrival", "ready"),
        default="arrival",
        help="ready lets short prompts pass long ones that are being encoded",
    )
    group.add_argument("--preprocess-inline", action="store_true", help="never use the thread (for comparisons)")
    group.add_argument(
        "--drain-timeout",
        type=at_least(0.0),
        default=30.0,
        metavar="SECONDS",
        help="for running requests at SIGTERM; default 30",
    )
    group.add_argument(
        "--drain-delay",
        type=at_least(0.0),
        default=0.0,
        metavar="SECONDS",
        help="before that: not ready, but still accepting; default 0",
    )
    group.add_argument(
        "--cpu-affinity",
        metavar="API[:ENGINE]",
        help="CPUs of the API servers (one each) and of the engine core, like 0-3:4-15; or auto. See docs/sglang.md",
    )
    group.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error"), help="default info"
    )

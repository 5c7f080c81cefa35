"""The flags about the Responses store."""

import argparse

from apiserver.config import StoreSettings


def add_store(parser: argparse.ArgumentParser) -> None:
    store = StoreSettings()
    group = parser.add_argument_group("responses store")
    group.add_argument(
        "--responses-store", metavar="PATH", help="an SQLite file that outlives the pool; default: one that does not"
    )
    group.add_argument("--no-responses-store", action="store_true", help="keep no responses")
    group.add_argument(
        "--responses-max-bytes", type=int, default=store.max_bytes, metavar="N", help="the oldest go beyond it"
    )
    group.add_argument(
        "--responses-max-age",
        type=float,
        default=store.max_age_seconds,
        metavar="SECONDS",
        help="since they were made, or continued (default 30 days)",
    )


def check_store(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.no_responses_store and options.responses_store is not None:
        parser.error("--responses-store and --no-responses-store exclude each other")
    if options.responses_max_bytes < 1 or options.responses_max_age <= 0:
        parser.error("--responses-max-bytes and --responses-max-age must be above 0")


def store(options: argparse.Namespace) -> StoreSettings | None:
    if options.no_responses_store:
        return None
    return StoreSettings(options.responses_store, options.responses_max_bytes, options.responses_max_age)

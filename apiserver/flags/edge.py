"""The flags about how much the pool takes on, how long it works for one request, and whose it is."""

import argparse

from apiserver.config import AdmissionSettings

_COUNTS = {
    "max_inflight": "requests in the engine, of all API servers; each choice of each prompt counts",
    "max_queued_requests": "of those, the ones that it has not begun to answer",
    "max_queued_tokens": "the prompt tokens of those",
    "max_inflight_per_key": "HTTP requests that one API key may have at a time",
    "max_requests_per_minute_per_key": "HTTP requests that one API key may send in each minute of the clock",
}


def add_admission(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("admission", "0, the default of each, is no limit")
    for name, text in _COUNTS.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=int, default=0, metavar="N", help=text)
    group.add_argument(
        "--request-timeout",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="end a request that has not been answered by then; clients may ask for less by x-request-timeout-ms",
    )


def check_admission(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    for name in (*_COUNTS, "request_timeout"):
        if getattr(options, name) < 0:
            parser.error(f"--{name.replace('_', '-')} must not be negative")


def admission(options: argparse.Namespace) -> AdmissionSettings:
    return AdmissionSettings(**{name: getattr(options, name) for name in _COUNTS})

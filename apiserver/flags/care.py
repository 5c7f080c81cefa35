"""The flags about the engine core as somebody else's process: when it counts as dead, and where it is."""

import argparse
from collections.abc import Sequence

from apiserver.config import EngineCare, RemoteEngineSettings


def add_engine_care(parser: argparse.ArgumentParser) -> None:
    care = EngineCare()
    group = parser.add_argument_group("a dead engine")
    group.add_argument(
        "--engine-restart",
        choices=("on-failure", "never"),
        default=care.restart,
        help="on-failure: start a new one while the API servers answer 503; never: stop the pool with exit code 4",
    )
    for name, kind, default, unit, text in (
        ("restart-limit", int, care.restart_limit, "N", "so many restarts within the window; one more stops the pool"),
        ("restart-window", float, care.restart_window_seconds, "SECONDS", "the window"),
        (
            "heartbeat-timeout",
            float,
            care.heartbeat_seconds,
            "SECONDS",
            "dead if its loop has stood still for so long",
        ),
        (
            "stall-timeout",
            float,
            care.stall_seconds,
            "SECONDS",
            "dead if it has work and has given nothing for so long",
        ),
        ("load-timeout", float, care.load_seconds, "SECONDS", "dead if it has not loaded in so long"),
    ):
        group.add_argument(
            f"--engine-{name}", type=kind, default=default, metavar=unit, help=f"{text}; default {default:g}"
        )


def check_engine_care(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.max_requests_per_worker < 0:
        parser.error("--max-requests-per-worker must be at least 1, or 0 for never")
    if options.engine_restart_limit < 1:
        parser.error("--engine-restart-limit must be at least 1; for none there is --engine-restart never")
    for name in ("engine_heartbeat_timeout", "engine_stall_timeout", "engine_load_timeout", "engine_restart_window"):
        if not getattr(options, name) >= 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1 second")


def engine_care(options: argparse.Namespace) -> EngineCare:
    return EngineCare(
        restart=options.engine_restart,
        restart_limit=options.engine_restart_limit,
        restart_window_seconds=options.engine_restart_window,
        heartbeat_seconds=options.engine_heartbeat_timeout,
        stall_seconds=options.engine_stall_timeout,
        load_seconds=options.engine_load_timeout,
    )


def add_remote(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("an engine on another machine (apiserver engine)")
    group.add_argument("--engine-address", metavar="tcp://HOST:PORT", help="use that one; start none here")
    group.add_argument("--keys", metavar="DIR", help="this pool's, made by apiserver keys; needed off the loopback")
    group.add_argument(
        "--engine-link-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="a connection that has brought no heartbeat for so long is lost, and whoever waits gets an error",
    )


def remote(
    parser: argparse.ArgumentParser, options: argparse.Namespace, engine_arguments: Sequence[str]
) -> RemoteEngineSettings | None:
    if options.engine_address is None:
        if options.keys is not None:
            parser.error("--keys are for --engine-address")
        return None
    if engine_arguments:
        parser.error(
            "flags of the engine (after --, or engine_args) belong to apiserver engine, not to --engine-address"
        )
    if options.engine_link_timeout < 1:
        parser.error("--engine-link-timeout must be at least 1 second")
    return RemoteEngineSettings(options.engine_address, options.keys, options.engine_link_timeout)

"""`python -m engine_bridge`: the engine core process. Started by exec, not by fork: engines bring threads and CUDA."""

import argparse
import asyncio
import gc
import importlib
import logging
import os
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import Protocol, cast

import uvloop

from engine_bridge import log
from engine_bridge.address import BadAddress, is_tcp, to_listen
from engine_bridge.core import Core
from engine_bridge.engines import Engine, EngineError
from engine_bridge.gate import Gate
from engine_bridge.keys import AllowList, KeyProblem, read_server_keys
from engine_bridge.status import EngineRow, EngineState, Field, make_descriptor
from engine_bridge.transport import make_context

ENGINES = ("sim", "llamacpp", "onnx", "sglang")
EXIT_CANNOT_START = 3
_GC_THRESHOLDS = (10_000, 20, 50)  # a step makes many containers and no cycles
_EPOCH_BITS = 50  # of chance: an epoch is shown in JSON, whose readers take integers for floats
EXIT_FAILED = 4  # it has served; the engine could not go on


class EngineModule(Protocol):
    """What a module of engine_bridge.engines offers."""

    def create(self, model: str, arguments: list[str]) -> Engine:
        """Make the engine from everything that stood after `--`; wrong arguments exit with the parser's own message."""
        ...


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine_bridge", description="The engine core process.")
    parser.add_argument("--engine", choices=ENGINES, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--address", required=True, help="where to bind the ROUTER socket")
    parser.add_argument("--epoch", type=int, help="which incarnation of the core this is (default: a random number)")
    parser.add_argument("--status-fd", type=int, help="descriptor of the engine's row of shared memory")
    parser.add_argument("--keys", metavar="DIR", help="over tcp://: server.secret, and clients/, who may connect")
    parser.add_argument("--link-timeout", type=float, default=10.0, help="over tcp://: seconds of silence")
    parser.add_argument("--cpus", help="the CPUs, with commas, that this process and all that it starts run on")
    parser.add_argument("engine_arguments", nargs="*", help="after --: for the engine")
    return parser.parse_args(arguments)


async def serve(engine: Engine, row: EngineRow, options: argparse.Namespace) -> None:
    address = to_listen(options.address, with_keys=bool(options.keys)) if is_tcp(options.address) else options.address
    directory = Path(options.keys) if options.keys else None
    keys = read_server_keys(directory) if directory is not None else None
    epoch = options.epoch or 1 + secrets.randbits(_EPOCH_BITS)
    core = Core(engine, row, epoch=epoch, silence_seconds=options.link_timeout)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, core.stop)
    context = make_context()
    allowed = AllowList(directory / "clients") if directory is not None else None
    gate = Gate(context, allowed) if allowed is not None else None
    try:
        await core.run(context, address, keys, allowed)
    finally:
        if gate is not None:
            gate.close()
        context.term()


def main() -> int:
    options = parse(sys.argv[1:])
    logging.basicConfig(level=logging.INFO, handlers=[log.handler("engine")])
    gc.set_threshold(*_GC_THRESHOLDS)
    row = EngineRow.attach(make_descriptor() if options.status_fd is None else options.status_fd)
    if options.cpus is not None:
        os.sched_setaffinity(0, {int(cpu) for cpu in options.cpus.split(",")})
    row.set(Field.PID, os.getpid())
    row.set(Field.STARTED, time.monotonic_ns())
    row.beat(0, 0)
    module = cast(EngineModule, importlib.import_module(f"engine_bridge.engines.{options.engine}"))
    try:
        engine = module.create(options.model, options.engine_arguments)
        uvloop.run(serve(engine, row, options))
    except (EngineError, KeyProblem, BadAddress) as error:
        logging.getLogger("engine_bridge").error("%s", error)
        row.state = EngineState.DEAD
        return EXIT_FAILED if row.has_been_ready else EXIT_CANNOT_START
    return 0


if __name__ == "__main__":
    sys.exit(main())

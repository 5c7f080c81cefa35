"""`python -m engine_bridge`: the engine core process. Started by exec, not by fork: engines bring threads and CUDA."""

import argparse
import asyncio
import gc
import importlib
import logging
import os
import signal
import sys
import time
from typing import Protocol, cast

import uvloop

from engine_bridge.core import Core
from engine_bridge.engines import Engine, EngineError
from engine_bridge.status import EngineRow, EngineState, Field
from engine_bridge.transport import make_context

ENGINES = ("sim", "llamacpp", "onnx")
EXIT_CANNOT_START = 3
_GC_THRESHOLDS = (10_000, 20, 50)  # a step makes many containers and no cycles


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
    parser.add_argument("--epoch", type=int, default=1, help="which incarnation of the core this is")
    parser.add_argument("--status-fd", type=int, required=True, help="descriptor of the engine's row of shared memory")
    parser.add_argument("engine_arguments", nargs="*", help="after --: for the engine")
    return parser.parse_args(arguments)


async def serve(engine: Engine, row: EngineRow, options: argparse.Namespace) -> None:
    core = Core(engine, row, epoch=options.epoch)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, core.stop)
    context = make_context()
    try:
        await core.run(context, options.address)
    finally:
        context.term()


def main() -> int:
    options = parse(sys.argv[1:])
    logging.basicConfig(level=logging.INFO, format="engine  %(levelname)s %(message)s", stream=sys.stderr)
    gc.set_threshold(*_GC_THRESHOLDS)
    row = EngineRow.attach(options.status_fd)
    row.set(Field.PID, os.getpid())
    row.set(Field.STARTED, time.monotonic_ns())
    row.beat(0, 0)
    module = cast(EngineModule, importlib.import_module(f"engine_bridge.engines.{options.engine}"))
    try:
        engine = module.create(options.model, options.engine_arguments)
        uvloop.run(serve(engine, row, options))
    except EngineError as error:
        logging.getLogger("engine_bridge").error("%s", error)
        row.state = EngineState.DEAD
        return EXIT_CANNOT_START
    return 0


if __name__ == "__main__":
    sys.exit(main())

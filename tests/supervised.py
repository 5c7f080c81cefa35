"""A supervisor over workers and engines that misbehave: `python -m tests.supervised WORKER ENGINE`. For its tests."""

import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

from apiserver.board import Board, Cell, WorkerState
from apiserver.config import EngineCare
from apiserver.control import ControlSocket
from apiserver.crew import Crew
from apiserver.engine_keeper import EngineCommand, EngineKeeper
from apiserver.run_directory import run_directory
from apiserver.supervisor import SIGNALS, Patience, Supervisor
from engine_bridge.status import EngineRow, make_descriptor

COUNT = 2
_NOBODY = 65_534


def serve(board: Board, slot: int) -> int:
    """As a worker that is up, until it is told to stop."""
    row = board.slot(slot)
    stop = signal.SIGTERM, signal.SIGQUIT
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    row.set(Cell.PID, os.getpid())
    row.set(Cell.ENGINE_EPOCH, 1)
    row.state = WorkerState.READY
    while signal.sigtimedwait(stop, 0.05) is None:
        row.set(Cell.HEARTBEAT, time.monotonic_ns())
    return 0


def fail_to_boot(board: Board, slot: int) -> int:
    raise RuntimeError("the worker's own reason")


def fail_one_of_two(board: Board, slot: int) -> int:
    return fail_to_boot(board, slot) if slot == 1 else serve(board, slot)


def hang_at_boot(board: Board, slot: int) -> int:
    time.sleep(60)
    return 0


def crash(board: Board, slot: int) -> int:
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def hang_as_a_successor(board: Board, slot: int) -> int:
    return hang_at_boot(board, slot) if board.slot(slot).get(Cell.GENERATION) > COUNT else serve(board, slot)


def fail_as_a_successor(board: Board, slot: int) -> int:
    return fail_to_boot(board, slot) if board.slot(slot).get(Cell.GENERATION) > COUNT else serve(board, slot)


def die_as_soon_as_a_successor_is_up(board: Board, slot: int) -> int:
    row = board.slot(slot)
    if row.get(Cell.GENERATION) <= COUNT:
        return serve(board, slot)
    row.state = WorkerState.READY
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def stop_as_soon_as_a_successor_is_up(board: Board, slot: int) -> int:
    """Once: the next one stays."""
    row = board.slot(slot)
    if row.get(Cell.GENERATION) != COUNT + 1:
        return serve(board, slot)
    row.state = WorkerState.READY
    row.state = WorkerState.DRAINING
    return 0


def fail_after_serving(board: Board, slot: int) -> int:
    """The first of its slot; its successors are well."""
    row = board.slot(slot)
    if row.get(Cell.GENERATION) > COUNT:
        return serve(board, slot)
    row.state = WorkerState.READY
    raise RuntimeError("the worker's own reason")


def fail_in_the_drain(board: Board, slot: int) -> int:
    serve(board, slot)
    return 3


def drain_for_long(board: Board, slot: int) -> int:
    serve(board, slot)
    board.slot(slot).state = WorkerState.DRAINING
    signal.sigtimedwait((signal.SIGQUIT,), 60)
    return 0


def be_deaf(board: Board, slot: int) -> int:
    for number in (signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    row = board.slot(slot)
    row.set(Cell.ENGINE_EPOCH, 1)
    row.state = WorkerState.READY
    while True:
        row.set(Cell.HEARTBEAT, time.monotonic_ns())
        time.sleep(0.05)


WORKERS: dict[str, Callable[[Board, int], int]] = {
    function.__name__: function
    for function in (
        serve,
        fail_to_boot,
        fail_one_of_two,
        hang_at_boot,
        hang_as_a_successor,
        fail_as_a_successor,
        die_as_soon_as_a_successor_is_up,
        stop_as_soon_as_a_successor_is_up,
        crash,
        fail_after_serving,
        fail_in_the_drain,
        drain_for_long,
        be_deaf,
    )
}
ENGINES = {
    "ready": "exec sleep 60",
    "loading": "exec sleep 60",
    "dies": "exit 1",
    "deaf": "trap '' TERM; sleep 60 & echo engine $! ; wait; sleep 60",
}
"""In shell; the others are of `tests.engines`."""

CARE = EngineCare(restart_limit=3, heartbeat_seconds=1, stall_seconds=2, load_seconds=2)


def command_of(engine: str, epoch: int, descriptor: int) -> EngineCommand:
    if engine in ENGINES:
        return EngineCommand(("/bin/sh", "-c", ENGINES[engine]), ())
    argv = (sys.executable, "-m", "tests.engines", engine, str(epoch), str(descriptor))
    return EngineCommand(argv, (descriptor,))


class AlwaysWell(EngineRow):
    """The row of an engine that is up as soon as it is started, and does not say so itself."""

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        self.mark_ready()

    @property
    def heartbeat(self) -> int:
        return time.monotonic_ns()

    @property
    def last_output(self) -> int:
        return time.monotonic_ns()


def say_ready() -> None:
    logging.info("ready")


def let_the_next_fork_fail() -> None:
    """One: the complaint about it lifts the limit."""
    before = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, before[1]))

    class Lift(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "cannot fork" in record.msg:
                resource.setrlimit(resource.RLIMIT_NPROC, before)

    logging.getLogger().addHandler(Lift())
    say_ready()


def main(worker: str, engine: str) -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    board = Board(COUNT)
    descriptor = make_descriptor()
    row = (AlwaysWell if engine == "ready" else EngineRow).attach(descriptor)
    on_ready = say_ready
    if worker == "serve_where_forks_fail":
        worker, on_ready = "serve", let_the_next_fork_fail
        if os.geteuid() == 0:  # whom the kernel's limit on processes does not bind
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
    if worker == "two_threads":
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        worker = "serve"
    with socket.socket() as listener, run_directory() as directory, ControlSocket(directory) as control:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        supervisor = Supervisor(
            board,
            (listener,),
            Crew(
                board,
                lambda slot: WORKERS[worker](board, slot),
                blocked=SIGNALS,
                liveness_seconds=1,
                max_requests=0,
            ),
            EngineKeeper(lambda epoch: command_of(engine, epoch, descriptor), row, CARE, blocked=SIGNALS),
            control,
            Patience(drain_delay=0, drain=0.2),
            about={"address": "here", "port": listener.getsockname()[1]},
            on_ready=on_ready,
            reload=lambda: True,
        )
        return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""A child of the supervisor: how it begins, and how it ended. Standard library only.

A child leaves the terminal's process group (Ctrl-C reaches the supervisor alone, which drains), starts with no signal
blocked, and dies with its parent, from its first line on.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

EXIT_CANNOT_START = 3
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

log = logging.getLogger("apiserver.child")
_libc = ctypes.CDLL(None, use_errno=True)


def fork(action: Callable[[], int], *, blocked: Collection[signal.Signals]) -> int:
    """A child that acts, and exits with what that returns; its pid. `blocked` are the signals that we block and it does
    not. Raises OSError if there can be no child now."""
    # A fork copies only the calling thread; locks that others hold would stay locked in the child for ever.
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"the supervisor must have one thread when it forks, not {threads}")
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _live(action, parent, blocked)
    return pid


def _live(action: Callable[[], int], parent: int, blocked: Collection[signal.Signals]) -> NoReturn:
    """Never returns into the parent's frames: what stands behind them would end the pool a second time."""
    code = EXIT_CANNOT_START
    try:
        os.setsid()
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(EXIT_CANNOT_START)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)  # until the child has handlers of its own
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the pool's order, also where all that has our name gets it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        code = action()
    except BaseException:
        with contextlib.suppress(Exception):
            log.exception("a child of the pool failed")
    finally:
        try:
            logging.shutdown()
            sys.stderr.flush()
        finally:
            os._exit(code)


def stand_on_streams() -> None:
    """Open what of stdin, stdout and stderr is closed on nothing: a socket would take its place, and be written to."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        os.set_inheritable(descriptor, True)
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def trim_heap() -> None:
    """Give free pages of the heap back to the kernel, before a fork: a child that fills the holes of a shared page
    copies all of it."""
    _libc.malloc_trim(0)


def exec_program(argv: Sequence[str], descriptors: Sequence[int]) -> NoReturn:
    """Become another program, which inherits these descriptors. For a child's action."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    os.execv(argv[0], list(argv))


def kill_group(pid: int) -> None:
    """Whatever is left in the group that this child leads, or led."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody, or somebody else's by now
        os.killpg(pid, signal.SIGKILL)


def group_is_gone(pid: int) -> bool:
    """Whether nothing is left in that group, not even what waits to be reaped."""
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):  # nobody, or somebody else's by now
        return True
    return False


def adopt_orphans() -> None:
    """What a dead child has started becomes ours to reap, and not the business of whoever is process 1 here, which in a
    container may be a program that reaps nobody."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def how_it_ended(code: int) -> str:
    """An exit code, as subprocess has them, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # most of the real-time ones have no name
        return f"killed by signal {-code}"

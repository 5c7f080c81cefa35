"""SGLang's processes: how they begin, how their death is noticed, how they end.

SGLang's parent is expected to let it set signal handlers, to be killed by it with everything below when one of its
processes dies, and to leave the rest to atexit. Here nothing of that happens: `Engine` is made in a thread (so it sets
no handlers), its watchdog is stopped, and the core looks at the processes itself.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from engine_bridge.engines import EngineError
from engine_bridge.engines import sglang_api as api
from engine_bridge.engines.sglang_log import LogRelay
from engine_bridge.engines.sglang_scheduler import run_scheduler

_GRACE_SECONDS = 2.0  # for the schedulers to give back what they hold (a GPU's memory) before they are killed
_LAST_WORDS_SECONDS = 0.5


class _Engine(api.Engine):
    """With our scheduler, and without the detokenizer: half a gigabyte that would wait for text for ever."""

    run_scheduler_process_func = staticmethod(run_scheduler)

    @classmethod
    def _launch_detokenizer_subprocesses(cls, **_: Any) -> tuple[list[Any], list[str]]:
        return [], []

    def shutdown(self) -> None:
        """Called at exit, it would kill every child of this process, whoever's it is; `Launch.close` ends ours."""


class Launch:
    """One for an engine. `open`, then maybe `watch`, then `close`."""

    def __init__(self, server_args: Any, relay: LogRelay) -> None:
        self._server_args = server_args
        self._relay = relay
        self._strangers = set(psutil.Process().children())  # not ours to end
        self._closed = threading.Event()
        self._watched: dict[int, str] = {}  # pidfd → what it is
        self._manager: Any = None  # also of an engine that could not be made
        self.engine: Any = None

    async def open(self) -> Any:
        """The loaded Engine. Raises EngineError."""
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Any] = loop.create_future()
        # SGLang's processes die with the thread that has started them (PR_SET_PDEATHSIG), so this one stays.
        threading.Thread(target=self._run, args=(loop, opened), name="sglang-parent", daemon=True).start()
        try:
            self.engine = await opened
        except EngineError:
            await self.close()
            raise
        return self.engine

    def _run(self, loop: asyncio.AbstractEventLoop, opened: "asyncio.Future[Any]") -> None:
        result: Any = None
        error: EngineError | None = None
        try:
            with self._relay.capture():
                result = _Engine.__new__(_Engine)
                result.init_tokenizer_manager_func = self._make_manager
                result.__init__(server_args=self._server_args)
            result.tokenizer_manager._subprocess_watchdog.stop()  # it would have this process killed
        except BaseException as reason:  # SGLang raises anything here, SystemExit too
            error = EngineError(f"SGLang cannot start: {self._relay.last_error or reason}")
            self._close_sockets()
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile: nobody waits any more
            loop.call_soon_threadsafe(_settle, opened, result, error)
        self._closed.wait()

    def _make_manager(self, *arguments: Any) -> Any:
        made = api.init_tokenizer_manager(*arguments)
        self._manager = made[0]
        return made

    def _close_sockets(self) -> None:
        """Of an engine that could not be made: with something unsent, they would keep this process from ending."""
        if self._manager is not None:
            for socket in (self._manager.recv_from_detokenizer, self._manager.send_to_scheduler):
                socket.close(0)

    def watch(self, on_death: Callable[[str], None]) -> None:
        """Call back, once, with a line about it, as soon as one of SGLang's processes has ended."""
        loop = asyncio.get_running_loop()
        for pid in self.engine.get_all_child_pids():
            name = " ".join(psutil.Process(pid).cmdline()) or psutil.Process(pid).name()
            descriptor = os.pidfd_open(pid)
            self._watched[descriptor] = f"{name.strip()} (pid {pid})"
            loop.add_reader(descriptor, self._on_death, descriptor, on_death)

    def _on_death(self, descriptor: int, on_death: Callable[[str], None]) -> None:
        text = f"{self._watched[descriptor]} {_how_it_ended(descriptor)}"
        self.unwatch()
        on_death(f"{text}{self.last_words()}")

    def last_words(self) -> str:
        """What was said before a death, if it was an error."""
        return f": {self._relay.last_error}" if self._relay.last_error else ""

    def unwatch(self) -> None:
        """Their deaths are expected from now on."""
        for descriptor in self._watched:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        self._watched.clear()

    async def close(self, *, asked: bool = False) -> None:
        """End SGLang's processes; `asked` if they were told to and may have a moment to do it."""
        self.unwatch()
        await asyncio.to_thread(self._end, asked)
        self._closed.set()

    def _end(self, asked: bool) -> None:
        ours = _tree([child for child in psutil.Process().children() if child not in self._strangers])
        schedulers = [process for process in ours if _is_scheduler(process)]
        if asked:
            psutil.wait_procs(schedulers, timeout=_GRACE_SECONDS)
        for process in ours:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(ours, timeout=_GRACE_SECONDS)
        self._relay.drain(_LAST_WORDS_SECONDS)


def guard_group() -> int | None:
    """Have this process's group end when this process ends, however that happens; the descriptor is not to be closed.

    SGLang's own processes set PR_SET_PDEATHSIG, but only after seconds of importing. Only a process that leads a
    session, as the engine core does, has a group that is its own to end; for any other nothing is done.
    """
    if os.getsid(0) != os.getpid():
        return None
    read, write = os.pipe()
    subprocess.Popen(
        ["/bin/sh", "-c", "read _; kill -KILL 0"], stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(read)
    return write


def _settle(opened: "asyncio.Future[Any]", result: Any, error: EngineError | None) -> None:
    if opened.done():
        return  # cancelled: the core was told to stop
    if error is not None:
        opened.set_exception(error)
    else:
        opened.set_result(result)


def _tree(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found += [process, *process.children(recursive=True)]
    return found


def _is_scheduler(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return any("sglang::scheduler" in word for word in process.cmdline()[:1])
    return False


def _how_it_ended(descriptor: int) -> str:
    try:
        status = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # somebody has looked before us, or it is a child's child
        status = None
    if status is None:
        return "has ended"
    if status.si_code == os.CLD_EXITED:
        return f"ended with exit code {status.si_status}"
    return f"was killed by {signal.Signals(status.si_status).name}"

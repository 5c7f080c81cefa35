"""The supervisor alone, over processes that misbehave as no pool of ours should."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from apiserver.exit_code import ExitCode
from apiserver.supervisor import SIGNALS
from tests.pool import wait_for


class Supervised:
    """`tests.supervised` as a process; `log` is what it has said."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output

    @property
    def log(self) -> str:
        return self._output.read_text()

    def wait_until_it_says(self, text: str) -> None:
        wait_for(lambda: text in self.log, 5, f"{text!r} in the log")

    def children(self) -> set[psutil.Process]:
        return set(psutil.Process(self.process.pid).children())

    def newest_worker(self) -> psutil.Process:
        return psutil.Process(self.process.pid).children()[-1]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """With this signal it must end well."""
        self.send(number)
        assert self.end() == 0

    def end(self, seconds: float = 5) -> int:
        """Its exit code; no child of it may be left."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        code = self.process.wait(seconds)
        wait_for(lambda: not any(map(is_alive, children)), 2, "the end of every child")
        return code


def is_alive(process: psutil.Process) -> bool:
    """Grandchildren are reaped by somebody else, when it likes."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@contextmanager
def supervised(
    directory: Path, worker: str, engine: str = "ready", *, under: Sequence[str] = ()
) -> Iterator[Supervised]:
    """`under` is a command that execs ours."""
    output = directory / "log"
    with output.open("wb") as sink:
        command = [*under, sys.executable, "-u", "-m", "tests.supervised", worker, engine]
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
    try:
        yield Supervised(process, output)
    finally:
        process.kill()
        process.wait()


@contextmanager
def serving(directory: Path, worker: str) -> Iterator[Supervised]:
    """A pool that has said that it is ready."""
    with supervised(directory, worker) as pool:
        pool.wait_until_it_says("ready")
        yield pool


@pytest.mark.parametrize("worker", ["fail_to_boot", "fail_one_of_two"])
def test_a_worker_that_cannot_boot_stops_the_pool(tmp_path: Path, worker: str) -> None:
    with supervised(tmp_path, worker) as pool:
        assert pool.process.wait(5) == 3
        assert "the worker's own reason" in pool.log
        assert "could not start; stopping the pool" in pool.log
        assert "replacing" not in pool.log


def test_a_parent_that_ignores_its_children_does_not_make_us_blind(tmp_path: Path) -> None:
    """An ignored SIGCHLD is inherited, and with it the kernel reaps children before anybody can ask."""
    ignore = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    with supervised(tmp_path, "crash", under=(sys.executable, "-c", ignore)) as pool:
        assert pool.process.wait(5) == 5


def test_a_worker_that_hangs_at_boot_stops_the_pool(tmp_path: Path) -> None:
    with supervised(tmp_path, "hang_at_boot") as pool:
        assert pool.process.wait(5) == 3
        assert "has not moved for 1 s" in pool.log


def test_workers_that_crash_at_once_are_a_crash_loop(tmp_path: Path) -> None:
    with supervised(tmp_path, "crash") as pool:
        assert pool.process.wait(5) == 5
        assert "killed by SIGSEGV" in pool.log
        assert "a crash loop" in pool.log


def test_a_worker_that_fails_after_it_has_served_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, "fail_after_serving") as pool:
        assert pool.log.count("died (exit code 3)") == 2
        pool.stop()


def test_a_fork_that_fails_is_tried_again(tmp_path: Path) -> None:
    with serving(tmp_path, "serve_where_forks_fail") as pool:
        pool.newest_worker().kill()
        pool.wait_until_it_says("cannot fork API server")
        wait_for(lambda: len(pool.children()) == 3, 5, "the engine and two workers")
        pool.stop()


def test_workers_that_do_not_listen_are_killed_in_the_end(tmp_path: Path) -> None:
    with serving(tmp_path, "be_deaf") as pool:
        pool.stop(signal.SIGQUIT)
        assert "2 API servers did not stop in time; killing them" in pool.log


def test_a_loading_engine_that_does_not_listen_is_killed_with_what_it_started(tmp_path: Path) -> None:
    with supervised(tmp_path, "serve", "deaf") as pool:
        pool.wait_until_it_says("engine ")
        grandchild = psutil.Process(int(re.findall(r"engine (\d+)", pool.log)[0]))
        began = time.monotonic()
        pool.stop()
        assert time.monotonic() - began < 3
        assert not is_alive(grandchild)


def test_an_engine_that_ends_before_it_is_ready_could_not_start(tmp_path: Path) -> None:
    with supervised(tmp_path, "serve", "dies") as pool:
        assert pool.process.wait(5) == 3
        assert "the engine core could not start (exit code 1)" in pool.log


def test_workers_stop_and_restart_on_their_own_signal(tmp_path: Path) -> None:
    with serving(tmp_path, "serve") as pool:
        worker = pool.newest_worker()
        worker.send_signal(signal.SIGTERM)
        pool.wait_until_it_says("was told to stop; replacing it")
        pool.stop(signal.SIGINT)


def test_a_hangup_replaces_the_workers_one_by_one(tmp_path: Path) -> None:
    with serving(tmp_path, "serve") as pool:
        before = pool.children()
        pool.send(signal.SIGHUP)
        wait_for(lambda: pool.log.count("was retired") == 2, 5, "two retired workers")
        assert "the rolling restart is complete" in pool.log
        assert len(pool.children()) == 3
        assert len(pool.children() & before) == 1  # the engine
        pool.stop()


@pytest.mark.parametrize("worker", ["fail_as_a_successor", "hang_as_a_successor"])
def test_a_successor_that_cannot_start_leaves_the_old_workers(tmp_path: Path, worker: str) -> None:
    with serving(tmp_path, worker) as pool:
        before = pool.children()
        pool.send(signal.SIGHUP)
        pool.wait_until_it_says("the old ones stay")
        wait_for(lambda: pool.children() == before, 2, "the old processes alone")
        assert pool.process.poll() is None
        pool.stop()


def test_a_hangup_whose_fork_fails_leaves_the_old_workers(tmp_path: Path) -> None:
    with serving(tmp_path, "serve_where_forks_fail") as pool:
        before = pool.children()
        pool.send(signal.SIGHUP)
        pool.wait_until_it_says("cannot fork a new API server")
        assert pool.children() == before
        pool.send(signal.SIGHUP)
        pool.wait_until_it_says("the rolling restart is complete")
        pool.stop()


# ---- how many ----


def test_a_signal_makes_one_more_and_another_one_fewer(tmp_path: Path) -> None:
    with serving(tmp_path, "serve") as pool:
        pool.send(signal.SIGTTIN)
        wait_for(lambda: len(pool.children()) == 4, 5, "one more")
        pool.send(signal.SIGTTOU)
        wait_for(lambda: len(pool.children()) == 3, 5, "one fewer")
        pool.send(signal.SIGTTOU)
        wait_for(lambda: len(pool.children()) == 2, 5, "one")
        pool.send(signal.SIGTTOU)
        pool.wait_until_it_says("there can be 1 to 256 API servers, not 0")
        pool.stop()


@pytest.mark.parametrize("worker", ["fail_as_a_successor", "hang_as_a_successor"])
def test_an_additional_worker_that_cannot_start_leaves_the_others(tmp_path: Path, worker: str) -> None:
    with serving(tmp_path, worker) as pool:
        before = pool.children()
        pool.send(signal.SIGTTIN)
        pool.wait_until_it_says("going on with 2")
        wait_for(lambda: pool.children() == before, 2, "the old processes alone")
        pool.stop()


def test_an_additional_worker_that_is_not_wanted_any_more_takes_nobody_with_it(tmp_path: Path) -> None:
    with supervised(tmp_path, "hang_as_a_successor") as pool:
        pool.wait_until_it_says("ready")
        before = pool.children()
        pool.process.send_signal(signal.SIGTTIN)
        pool.wait_until_it_says("3 API servers instead of 2")
        pool.process.send_signal(signal.SIGTTOU)
        pool.wait_until_it_says("API server 2 (pid")
        assert "was retired" in pool.log
        assert "died" not in pool.log
        assert pool.children() == before
        pool.process.send_signal(signal.SIGTTOU)
        pool.wait_until_it_says("1 API servers instead of 2")
        pool.process.send_signal(signal.SIGTERM)
        assert pool.end() == 0


def test_a_successor_that_dies_before_it_was_seen_to_be_up_leaves_the_old_workers(tmp_path: Path) -> None:
    with supervised(tmp_path, "die_as_soon_as_a_successor_is_up") as pool:
        pool.wait_until_it_says("ready")
        before = pool.children()
        pool.process.send_signal(signal.SIGHUP)
        pool.wait_until_it_says("API server 2 (pid")
        assert "could not start (killed by SIGKILL); the old ones stay" in pool.log
        pool.process.send_signal(signal.SIGHUP)  # it is begun as the first one was
        wait_for(lambda: pool.log.count("the old ones stay") == 2, 5, "another try")
        assert pool.children() == before
        pool.process.send_signal(signal.SIGTERM)
        assert pool.end() == 0


def test_a_successor_that_is_told_to_stop_at_once_is_followed_by_another(tmp_path: Path) -> None:
    with supervised(tmp_path, "stop_as_soon_as_a_successor_is_up") as pool:
        pool.wait_until_it_says("ready")
        before = pool.children()
        [engine] = [process for process in before if process.name() == "sleep"]
        pool.process.send_signal(signal.SIGHUP)
        pool.wait_until_it_says("the rolling restart is complete")
        wait_for(lambda: before & pool.children() == {engine} and len(pool.children()) == 3, 5, "new workers alone")
        pool.process.send_signal(signal.SIGTERM)
        assert pool.end() == 0


def test_a_pool_that_shrinks_in_a_rolling_restart_ends_with_new_workers_alone(tmp_path: Path) -> None:
    with serving(tmp_path, "serve") as pool:
        for _ in range(2):
            pool.send(signal.SIGTTIN)
            pool.wait_until_it_says("API servers instead of")
        before = pool.children()
        [engine] = [process for process in before if process.name() == "sleep"]
        pool.send(signal.SIGHUP)
        pool.send(signal.SIGTTOU)
        pool.wait_until_it_says("the rolling restart is complete")
        wait_for(lambda: before & pool.children() == {engine}, 5, "new workers alone")
        pool.stop()


def test_a_pool_that_is_stopping_is_not_resized(tmp_path: Path) -> None:
    with serving(tmp_path, "be_deaf") as pool:
        pool.send(signal.SIGTERM)
        pool.wait_until_it_says("draining")
        pool.send(signal.SIGTTIN)
        pool.wait_until_it_says("the pool is stopping")
        assert pool.end(10) == 0


def test_a_worker_that_fails_while_it_drains_is_a_death_and_nobody_follows(tmp_path: Path) -> None:
    with serving(tmp_path, "fail_in_the_drain") as pool:
        pool.send(signal.SIGTTOU)
        pool.wait_until_it_says("died (exit code 3)")
        assert len(pool.children()) == 2
        pool.stop(signal.SIGQUIT)


def test_a_worker_that_drains_by_itself_is_replaced_before_it_has_gone(tmp_path: Path) -> None:
    with serving(tmp_path, "drain_for_long") as pool:
        victim = pool.newest_worker()
        victim.send_signal(signal.SIGTERM)
        pool.wait_until_it_says("was told to stop; replacing it")
        wait_for(lambda: len(pool.children()) == 4, 2, "its successor beside it")
        assert victim in pool.children()
        victim.kill()
        wait_for(lambda: len(pool.children()) == 3, 2, "its end")
        pool.stop(signal.SIGQUIT)


def test_a_paused_supervisor_does_not_blame_its_workers(tmp_path: Path) -> None:
    """As in a paused container: everybody stood still, and nobody is at fault."""
    with serving(tmp_path, "serve") as pool:
        everybody = [psutil.Process(pool.process.pid), *pool.children()]
        for process in everybody:
            process.suspend()
        paused = time.monotonic()
        wait_for(lambda: time.monotonic() - paused > 1.3, 2, "a pause longer than the limit")
        for process in everybody:  # the supervisor first: it sees old heartbeats
            process.resume()
        pool.stop()
        assert "has not moved" not in pool.log


def test_it_does_not_fork_with_two_threads(tmp_path: Path) -> None:
    with supervised(tmp_path, "two_threads") as pool:
        assert pool.process.wait(5) == 1
        assert "must have one thread when it forks, not 2" in pool.log


def test_the_documentation_names_every_exit_code_and_signal() -> None:
    text = (Path(__file__).parents[2] / "docs" / "signals.md").read_text()
    for code in ExitCode:
        assert f"\n| {code.value} |" in text
    for number in SIGNALS:
        assert number.name in text or number is signal.SIGCHLD

"""The supervisor over engine cores that misbehave as no engine of ours should."""

import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.integration.test_supervisor import Supervised, is_alive, supervised
from tests.pool import wait_for


def engine(pool: Supervised, epoch: int) -> psutil.Process:
    """The core of this epoch, which is up."""
    wait_for(lambda: f"of epoch {epoch}\n" in pool.log, 10, f"epoch {epoch}")
    return psutil.Process(int(re.findall(rf"engine (\d+) of epoch {epoch}\n", pool.log)[0]))


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        ("stands_still", "has a loop that has stood still for 1 s (--engine-heartbeat-timeout)"),
        ("stalls", "has work, and has given nothing for 2 s (--engine-stall-timeout)"),
    ],
)
def test_a_core_that_is_stuck_is_killed_and_another_is_started(tmp_path: Path, kind: str, complaint: str) -> None:
    with supervised(tmp_path, "serve", kind) as pool:
        pool.wait_until_it_says("ready")
        workers = pool.children() - {engine(pool, 1)}
        pool.wait_until_it_says(complaint)
        engine(pool, 2)
        pool.wait_until_it_says("the engine serves again")
        assert workers < pool.children()
        pool.process.send_signal(signal.SIGTERM)
        assert pool.end() == 0


def test_a_core_that_does_not_load_in_time_could_not_start(tmp_path: Path) -> None:
    with supervised(tmp_path, "serve", "loading") as pool:
        assert pool.process.wait(10) == 3
        assert "has not loaded in 2 s (--engine-load-timeout); killing it" in pool.log
        assert "the engine core could not start" in pool.log


@pytest.mark.parametrize("kind", ["crashes", "fails_after_one"])
def test_a_core_that_dies_again_and_again_is_a_crash_loop(tmp_path: Path, kind: str) -> None:
    with supervised(tmp_path, "serve", kind) as pool:
        pool.wait_until_it_says("ready")
        if kind == "fails_after_one":
            engine(pool, 1).kill()
        assert pool.process.wait(20) == 5
        assert "the engine core died 4 times within 3600 s: a crash loop; stopping the pool" in pool.log
        assert "restart 2 of at most 3, in 1 s" in pool.log
        assert "restart 3 of at most 3, in 2 s" in pool.log
        assert ("before it was loaded" in pool.log) == (kind == "fails_after_one")


def test_what_a_dead_core_has_started_dies_before_the_next_one_starts(tmp_path: Path) -> None:
    with supervised(tmp_path, "serve", "with_a_child") as pool:
        pool.wait_until_it_says("ready")
        grandchild = psutil.Process(int(re.findall(r"grandchild (\d+)", pool.log)[0]))
        engine(pool, 1).kill()
        engine(pool, 2)
        assert not is_alive(grandchild)
        assert not psutil.pid_exists(grandchild.pid)  # reaped, by whoever adopted it: us
        pool.process.send_signal(signal.SIGTERM)
        assert pool.end() == 0


def test_a_remnant_that_cannot_die_delays_the_next_core_but_not_for_ever(tmp_path: Path) -> None:
    with supervised(tmp_path, "serve", "with_a_zombie") as pool:
        pool.wait_until_it_says("ready")
        pool.wait_until_it_says("grandchild")
        try:
            engine(pool, 1).kill()
            began = time.monotonic()
            wait_for(lambda: "is not gone after 10 s; going on" in pool.log, 15, "the complaint")
            assert time.monotonic() - began > 8
            engine(pool, 2)
            wait_for(lambda: len(re.findall(r"grandchild \d+", pool.log)) == 2, 5, "the second core's own remnant")
        finally:
            for remnant in re.findall(r"grandchild (\d+)", pool.log):
                psutil.Process(int(remnant)).kill()
        pool.process.send_signal(signal.SIGTERM)
        assert pool.end() == 0


def test_a_core_whose_fork_fails_is_tried_again(tmp_path: Path) -> None:
    with supervised(tmp_path, "serve_where_forks_fail") as pool:
        pool.wait_until_it_says("ready")
        psutil.Process(pool.process.pid).children()[0].kill()
        pool.wait_until_it_says("cannot fork the engine core")
        pool.wait_until_it_says("the engine serves again")
        pool.process.send_signal(signal.SIGTERM)
        assert pool.end() == 0


def test_a_core_that_stands_still_in_the_drain_does_not_hold_it_up(tmp_path: Path) -> None:
    with supervised(tmp_path, "be_deaf", "stands_still") as pool:
        pool.wait_until_it_says("ready")
        pool.process.send_signal(signal.SIGTERM)
        pool.wait_until_it_says("stood still")
        pool.wait_until_it_says("the engine core died (killed by SIGKILL) while the pool was stopping")
        assert pool.end(8) == 4

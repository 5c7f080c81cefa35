"""What somebody meets who starts the pool for the first time, and does it wrongly."""

import subprocess
import sys

import pytest

from tests.conftest import StartPool
from tests.pool import wait_for

pytestmark = pytest.mark.e2e

INTERRUPTED = """
import os, signal, sys
from apiserver.cli import main

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "apiserver.launch":
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C while the web framework is being imported

sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests in the background may ignore it
sys.exit(main(["serve", "sim", "--engine", "sim"]))
"""


def test_ctrl_c_while_it_imports_is_no_traceback() -> None:
    child = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout, child.stderr) == (130, "", "")


def test_a_wrong_flag_of_the_engine_is_two_lines_and_exit_code_3() -> None:
    words = ["serve", "sim", "--engine", "sim", "--port", "0", "--log-level", "error", "--", "--step-mss", "5"]
    child = subprocess.run([sys.executable, "-m", "apiserver", *words], capture_output=True, text=True, check=False)
    assert child.returncode == 3
    first, second = child.stderr.splitlines()
    assert "ERROR   engine  --engine sim --: unrecognized arguments: --step-mss 5; there are " in first
    assert "ERROR   pool  the engine core could not start (exit code 2); stopping" in second


def test_an_engine_that_loads_for_long_is_told_now_and_then(start_pool: StartPool) -> None:
    with start_pool(engine=("--load-seconds", "4.5"), ready=False) as pool:
        wait_for(lambda: "the engine core is loading, 4 s so far" in pool.log, 15, "a word")
        wait_for(lambda: pool.get("/ready").status_code == 200, 15, "a ready pool")
        assert pool.log.count("the engine core is loading") == 1
        assert pool.stop() == 0


def test_an_engine_that_was_asked_for_help_is_no_mystery() -> None:
    words = ["serve", "sim", "--engine", "sim", "--port", "0", "--log-level", "error", "--", "--help"]
    child = subprocess.run([sys.executable, "-m", "apiserver", *words], capture_output=True, text=True, check=False)
    assert "--step-ms" in child.stdout
    assert child.stderr.endswith("pool  the engine core did what it was asked (--help?) and ended; stopping\n")

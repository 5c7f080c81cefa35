"""--cpu-affinity, seen from outside."""

import os

import psutil
import pytest

from apiserver.flags import make_parsers, parse_serve
from tests.conftest import StartPool


def test_api_servers_and_the_engine_have_cpus_of_their_own(start_pool: StartPool) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    with start_pool("--api-server-count", "1", "--cpu-affinity", "auto") as pool:
        (worker,) = pool.worker_pids()
        assert psutil.Process(worker).cpu_affinity() == allowed[-1:]
        assert psutil.Process(pool.engine()["pid"]).cpu_affinity() == (allowed[:-1] or allowed)
        assert psutil.Process(pool.process.pid).cpu_affinity() == allowed


def test_a_cpu_that_is_not_there_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_serve(make_parsers(), ["serve", "m", "--cpu-affinity", "8191"])
    assert "--cpu-affinity: this process may not use CPU 8191" in capsys.readouterr().err

"""A child of the supervisor: it ends where it is told to, whatever becomes of its log, and is told from strangers."""

import os
import signal
import subprocess
import sys

import pytest

from apiserver import child

_FORK = """
import logging, os, signal, sys
from apiserver import child
{before}
pid = child.fork(lambda: {action}, blocked=(signal.SIGHUP,))
_, status = os.waitpid(pid, 0)
os.write(1, f"{{os.waitstatus_to_exitcode(status)}}\\n".encode())
"""


def ended(action: str, before: str = "") -> list[str]:
    """What a parent of such a child says: a line for each process that comes back from the fork."""
    program = _FORK.format(before=before, action=action)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "before",
    [
        "",
        "sys.stderr = None",
        "logging.basicConfig(stream=open('/dev/full', 'w'))",
        "logging.basicConfig(stream=sys.stdout); sys.stdout.close()",
    ],
)
@pytest.mark.parametrize(("action", "code"), [("7", "7"), ("1 / 0", "3"), ("logging.warning('x') or 5", "5")])
def test_it_never_comes_back_into_its_parents_frames(before: str, action: str, code: str) -> None:
    assert ended(action, before) == [code]


def test_it_does_not_die_of_its_parents_order() -> None:
    assert ended("os.kill(os.getpid(), signal.SIGHUP) or 7") == ["7"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_group_of_somebody_else_is_none_of_ours() -> None:
    """A number that a dead child had may be another user's by now."""
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        program = f"""
import os
from apiserver import child
os.setuid(65_534)
child.kill_group({process.pid})
print(child.group_is_gone({process.pid}))
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
        assert done.stdout == "True\n"
        assert process.poll() is None
        process.kill()


def test_a_group_that_lives_is_not_gone_and_one_that_is_killed_is() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        assert not child.group_is_gone(process.pid)
        child.kill_group(process.pid)
        assert process.wait(5) == -signal.SIGKILL
    assert child.group_is_gone(process.pid)

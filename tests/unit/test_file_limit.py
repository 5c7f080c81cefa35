"""The limit of open files, in a process of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
import logging, resource
from apiserver.file_limit import raise_file_limit
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
limits = {limits}
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
raise_file_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE) == {then})
"""


@pytest.mark.parametrize(
    ("limits", "then"),
    [
        ("(256, 2000)", "(2000, 2000)"),
        ("(256, hard)", "(hard if 0 <= hard < 65_536 else 65_536, hard)"),
        ("(1500, 1500)", "(1500, 1500)"),
    ],
)
def test_it_is_raised_as_far_as_it_may_be(limits: str, then: str) -> None:
    program = PROGRAM.format(limits=limits, then=then)
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (child.stdout, child.stderr) == ("True\n", "")


def test_one_that_stays_low_is_told() -> None:
    program = PROGRAM.format(limits="(64, 512)", then="(512, 512)")
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout == "True\n"
    assert child.stderr.startswith("at most 512 open files: ")

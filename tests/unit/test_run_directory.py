"""The directory of a run: private, locked, and swept when its owner could not."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from apiserver.run_directory import run_directory


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def make_old(path: Path) -> None:
    long_ago = time.time() - 3600
    os.utime(path, (long_ago, long_ago))


def test_it_is_private_and_gone_afterwards(temporary: Path) -> None:
    with run_directory() as path:
        assert path.parent == temporary
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "core.1").touch()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_pool_left_is_removed_and_nothing_else(temporary: Path) -> None:
    left, young, foreign = temporary / "apiserver-left", temporary / "apiserver-young", temporary / "something"
    for path in (left, young, foreign):
        path.mkdir()
    for path in (left, foreign):
        make_old(path)
    with run_directory() as running:
        make_old(running)
        with run_directory() as second:
            assert sorted(temporary.iterdir()) == sorted([young, foreign, running, second])


def test_a_forked_child_keeps_it_from_the_next_pool(temporary: Path) -> None:
    reader, writer = os.pipe()
    with run_directory() as path:
        make_old(path)
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)  # until the parent closes its end
            os._exit(0)
    path.mkdir()  # as if the parent had been killed: its own copy of the lock is closed, the directory still there
    make_old(path)
    os.close(reader)
    os.close(writer)
    os.waitpid(pid, 0)
    with run_directory() as own:
        assert list(temporary.iterdir()) == [own]

"""The directory of a run: private, locked, and swept when its owner could not."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from apiserver.run_directory import run_directories, run_directory


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
    left, young, foreign = temporary / "apiserver-1_x0left", temporary / "apiserver-0x_young", temporary / "something"
    for path in (left, young, foreign):
        path.mkdir(mode=0o700)
    for name in ("core.3", "control", "control.71", "responses.db", "responses.db-wal", "responses.db-owners"):
        (left / name).touch()
    for path in (left, foreign):
        make_old(path)
    with run_directory() as running:
        make_old(running)
        with run_directory() as second:
            assert sorted(temporary.iterdir()) == sorted([young, foreign, running, second])


@pytest.mark.parametrize(
    ("name", "mode", "file"),
    [
        ("apiserver-pool", 0o700, None),
        ("apiserver-checkout", 0o700, "README.md"),
        ("apiserver-checkout", 0o755, "control"),
        ("apiserver-12345678", 0o755, "control"),
        ("apiserver-12345678", 0o700, "my-notes"),
        ("apiserver-12345678", 0o700, "core.d"),
    ],
)
def test_somebodys_work_of_a_similar_name_is_left_alone(
    temporary: Path, name: str, mode: int, file: str | None
) -> None:
    path = temporary / name
    path.mkdir(mode=mode)
    if file is not None:
        (path / file).write_text("precious")
    make_old(path)
    with run_directory():
        pass
    assert path.is_dir()
    assert file is None or (path / file).read_text() == "precious"


def test_what_lies_in_a_directory_of_a_files_name_is_left_alone(temporary: Path) -> None:
    path = temporary / "apiserver-12345678"
    (path / "responses.db-backup").mkdir(parents=True)
    (path / "responses.db-backup" / "file").write_text("precious")
    path.chmod(0o700)
    make_old(path)
    with run_directory():
        pass
    assert (path / "responses.db-backup" / "file").read_text() == "precious"


def test_a_link_to_somebodys_directory_is_left_alone(temporary: Path) -> None:
    target = temporary / "target"
    target.mkdir(mode=0o700)
    make_old(target)
    link = temporary / "apiserver-12345678"
    link.symlink_to(target)
    with run_directory():
        pass
    assert link.is_symlink()
    assert target.is_dir()


def test_a_temporary_directory_that_is_too_long_for_sockets_is_said(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = temporary / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(OSError, match="too long for the path of a socket: set TMPDIR"), run_directory():
        pass
    assert list(long.iterdir()) == []


def test_those_that_run_are_found_and_nothing_of_a_similar_name(temporary: Path) -> None:
    (temporary / "apiserver-pool").mkdir()
    with run_directory() as first, run_directory() as second:
        assert run_directories() == sorted([first, second])


def test_a_forked_child_keeps_it_from_the_next_pool(temporary: Path) -> None:
    reader, writer = os.pipe()
    with run_directory() as path:
        make_old(path)
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)  # until the parent closes its end
            os._exit(0)
    path.mkdir(
        mode=0o700
    )  # as if the parent had been killed: its own copy of the lock is closed, the directory still there
    make_old(path)
    os.close(reader)
    os.close(writer)
    os.waitpid(pid, 0)
    with run_directory() as own:
        assert list(temporary.iterdir()) == [own]

"""Where the pool's own sockets are: a fresh directory each run, which nobody else can enter, and which is not left.

A pool that was killed could not clean up, so the next one does it: a running pool holds a lock on its directory, and so
do the children that it forks; a directory whose lock is free is nobody's any more. Only what looks like ours in every
way is removed, and file by file: a directory of that name may also be somebody's work.
"""

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "apiserver-"
_NAME = re.compile(_PREFIX + "[a-z0-9_]{8}")  # as mkdtemp makes them
_FILE = re.compile(r"core\.\d+|control(\.\d+)?|responses\.db(-[a-z]+)?")
_MOST_PATH_BYTES = 107  # of a Unix socket's address
_LONGEST_NAME = "control.4194304"  # an epoch over ipc:// is a count, and shorter
_YOUNG_SECONDS = 60.0  # it may have been made a moment ago, and not be locked yet


@contextmanager
def run_directory() -> Generator[Path]:
    """Mode 0700 in the system's temporary directory; its names are short enough for a socket's path. Raises
    OSError, with a message for people."""
    root = Path(tempfile.gettempdir())
    _sweep(root)
    path = _make(root)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield path
    finally:
        os.close(descriptor)
        shutil.rmtree(path, ignore_errors=True)


def _make(root: Path) -> Path:
    if len(os.fsencode(root / f"{_PREFIX}12345678" / _LONGEST_NAME)) > _MOST_PATH_BYTES:
        raise OSError(f"the temporary directory {root} is too long for the path of a socket: set TMPDIR to another")
    return Path(tempfile.mkdtemp(prefix=_PREFIX))


def run_directories() -> list[Path]:
    """Those that are there, of pools that run or were killed; others' cannot be entered."""
    paths = Path(tempfile.gettempdir()).glob(_PREFIX + "*")
    return sorted(path for path in paths if _NAME.fullmatch(path.name))


def _sweep(root: Path) -> None:
    for path in root.glob(_PREFIX + "*"):
        with suppress(OSError):  # gone in this moment, or another user's
            if _is_ours(path) and _is_free(path):
                _remove(path)


def _is_ours(path: Path) -> bool:
    """And not so young that it may not be locked yet."""
    status = path.lstat()
    return (
        _NAME.fullmatch(path.name) is not None
        and stat.S_ISDIR(status.st_mode)
        and stat.S_IMODE(status.st_mode) == 0o700
        and status.st_uid == os.getuid()
        and time.time() - status.st_mtime > _YOUNG_SECONDS
        and all(_FILE.fullmatch(entry) for entry in os.listdir(path))
    )


def _remove(path: Path) -> None:
    for entry in os.listdir(path):
        os.unlink(path / entry)
    path.rmdir()


def _is_free(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True

"""Where the pool's own sockets are: a fresh directory each run, which nobody else can enter, and which is not left.

A pool that was killed could not clean up, so the next one does it: a running pool holds a lock on its directory, and so
do the children that it forks; a directory whose lock is free is nobody's any more.
"""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "apiserver-"
_YOUNG_SECONDS = 60.0  # it may have been made a moment ago, and not be locked yet


@contextmanager
def run_directory() -> Generator[Path]:
    """Mode 0700 in the system's temporary directory; its names are short enough for a socket's path."""
    _sweep(Path(tempfile.gettempdir()))
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield path
    finally:
        os.close(descriptor)
        shutil.rmtree(path, ignore_errors=True)


def run_directories() -> list[Path]:
    """Those that are there, of pools that run or were killed; others' cannot be entered."""
    return sorted(Path(tempfile.gettempdir()).glob(_PREFIX + "*"))


def _sweep(root: Path) -> None:
    for path in root.glob(_PREFIX + "*"):
        with suppress(OSError):  # gone in this moment, or another user's
            status = path.stat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > _YOUNG_SECONDS and _is_free(path):
                shutil.rmtree(path, ignore_errors=True)


def _is_free(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True

"""Who is making a stored response, and whether that process is still alive.

Each API server that opens the store gets a number that nobody had before, and holds a lock on the byte of that number
in a file beside the database. The kernel drops the lock with the process, however it dies, and no clock is asked. POSIX
locks are not inherited by a fork, and they reach as far as the file does: other pools on one store, other containers.
"""

import fcntl
import os
from pathlib import Path


class Owners:
    """One a process, for as long as it lives: closing any descriptor of the file would drop the process's locks."""

    def __init__(self, path: Path, own: int) -> None:
        self.own = own
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, own)

    def is_alive(self, owner: int) -> bool:
        """Whoever asks at the same moment may see each other's look at it, and take that for life; once."""
        if owner == self.own:
            return True
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, owner)
        except (BlockingIOError, PermissionError):
            return True
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, owner)
        return False

    def close(self) -> None:
        os.close(self._descriptor)

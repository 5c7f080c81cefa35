"""What the pool's exit says; docs/signals.md has the table."""

from enum import IntEnum

from apiserver import child


class ExitCode(IntEnum):
    STOPPED = 0
    CANNOT_START = child.EXIT_CANNOT_START  # an API server or the engine failed to start
    ENGINE_DIED = 4
    CRASH_LOOP = 5

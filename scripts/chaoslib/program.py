"""A command of ours as a process, whose lines can be waited for."""

import asyncio
import contextlib
import re
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process

from benchlib.errors import PoolError
from benchlib.pool import environment

_SECONDS = 40.0


class Program:
    """Running."""

    python = sys.executable

    def __init__(self, process: Process) -> None:
        self._process = process
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def said(self, pattern: str) -> str:
        """What the pattern's group is in the first line that has it. Raises PoolError. To be called once."""
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(_SECONDS):
                while line := (await self._process.stdout.readline()).decode(errors="replace"):
                    if (found := re.search(pattern, line)) is not None:
                        self._reading = asyncio.create_task(self._read_on())
                        return found[1]
        except TimeoutError:
            raise PoolError(f"it did not say {pattern!r} within {_SECONDS:.0f} s") from None
        raise PoolError(f"it ended without saying {pattern!r}")

    async def _read_on(self) -> None:
        assert self._process.stdout is not None
        while await self._process.stdout.read(65536):
            pass

    async def stop(self) -> None:
        """SIGKILL, if it still lives."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        if self._reading is not None:
            await self._reading


async def start(*arguments: str) -> Program:
    """`apiserver` with these arguments."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "apiserver", *arguments), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=environment()
    )
    return Program(process)

"""The CPU that a piece of load costs each process: the clocks before it and after it."""

import gc
from collections.abc import Awaitable
from typing import TypeVar

from benchlib import processes
from benchlib.client import JsonClient
from benchlib.parsing import ReplyError
from benchlib.pool import Server

T = TypeVar("T")


class Meter:
    """Of one server, as far as its processes are on this machine and somebody names them."""

    def __init__(self, server: Server, http: JsonClient) -> None:
        self._server = server
        self._http = http

    async def measure(self, work: Awaitable[T]) -> tuple[T, processes.Spent]:
        """Await the load, with our own garbage collector off: its pauses would be somebody's latency."""
        gc.collect()
        gc.disable()
        try:
            roles = await self.roles()
            before = processes.read(roles)
            result = await work
            after = processes.read(roles)
            # A worker that was replaced meanwhile is known only now.
            now = await self.roles()
            born = processes.read({pid: role for pid, role in now.items() if pid not in roles})
        finally:
            gc.enable()
        return result, processes.spent(before, after.joined(born), {**now, **roles})

    async def roles(self) -> processes.Roles:
        """The server's processes, by their parts."""
        known: dict[int, str] = {}
        if self._server.target.is_local:
            try:
                _, document = await self._http.get("/pool")
            except (OSError, ReplyError):
                document = None  # a server that dies under load is shown by its failures
            known = processes.roles_from_pool(document)
        return processes.roles_of_tree(known, root=self._server.root_pid)

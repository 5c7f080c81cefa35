"""Work that is short enough to stay on the loop may still come four at a time: they share the loop's turns.

When one step of the engine answers four clients with long conversations, all four ask again at once, and four
preparations of 2 or 3 ms each, in one turn of the loop, are 10 ms in which no stream and no health check goes on. So
after a piece of work that was not small, the others wait for a turn of their own, first come, first served.
"""

import asyncio
from collections import deque

SMALL_SECONDS = 0.0005


class Turnstile:
    """Whoever finds it shut awaits `wait`, and everybody calls `leave` when its work is done, or handed on."""

    def __init__(self) -> None:
        self.is_shut = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Return when it is the caller's turn. Nobody overtakes; who is cancelled gives up its place."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was its turn already
                self._let_in()
            raise

    def leave(self, seconds: float) -> None:
        """`seconds` is what the work took. After small work the next one may come at once, if anybody waits."""
        if seconds > SMALL_SECONDS:
            self.is_shut = True
            asyncio.get_running_loop().call_soon(self._let_in)
        elif self.is_shut:
            self._let_in()

    def _let_in(self) -> None:
        """The next one, in the next turn of the loop; it stays shut until nobody waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.is_shut = False

"""What a client has sent ahead of its turn, many requests behind each other: bounded, and looked at piece by piece.

A quarter of a megabyte, which is one read, has room for thousands of small requests. To make them all at once would
hold the loop for a quarter of a second and take a hundred times the memory; and each answer would make room for the
next read.
"""

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl

PIECE_BYTES = 8 * 1024
"""What the parser is given at a time: a few milliseconds of the smallest requests, and of a body next to nothing."""
MOST_AHEAD = 16
"""Requests that wait for their turn before anything more is looked at; one piece more than that are made at most."""


class Backlog(FlowControl):
    """uvicorn's flow control. While something that has arrived is kept here, no more is read, whoever asks for it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._kept = b""

    def keep(self, data: bytes) -> None:
        self._kept += data
        self.pause_reading()

    def take(self) -> bytes:
        """What is kept. From now on more may be read."""
        kept, self._kept = self._kept, b""
        return kept

    def resume_reading(self) -> None:
        if not self._kept:
            super().resume_reading()

"""Logging: one format for every process of the pool, one line per start, stop, death and 5xx. Never prompts or keys."""

import logging

from engine_bridge.log import handler


def set_up(level: str, role: str) -> None:
    """Send this process's log to stderr, each line with who speaks. Call again after the fork with the new role."""
    root = logging.getLogger()
    root.handlers[:] = [handler(role)]
    root.setLevel(level.upper())
    # Ours says what matters; uvicorn's own lines ("Invalid HTTP request received.") would be one per stranger.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)

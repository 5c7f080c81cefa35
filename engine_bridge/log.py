"""How a line of the log looks, whichever process writes it: when, how grave, who speaks, what."""

import logging
import sys
import time

_DATES = "%m-%d %H:%M:%S"


def handler(role: str) -> logging.Handler:
    """To stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)-7s {role}  %(message)s", datefmt=_DATES))
    return handler


def line(level: str, role: str, text: str) -> str:
    """What the handler of `role` would write."""
    return f"{time.strftime(_DATES)} {level:7} {role}  {text}"

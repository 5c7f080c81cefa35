"""How a line of the log looks, whichever process writes it: when, how grave, who speaks, what. It stays one line,
whatever a client, a peer or an engine has put into it."""

import logging
import sys
import time

_DATES = "%m-%d %H:%M:%S"
_CONTROLS = {number: f"\\x{number:02x}" for number in (*range(0x20), *range(0x7F, 0xA0))}
_SHOWN = _CONTROLS | {0x2028: "\\u2028", 0x2029: "\\u2029"}


def handler(role: str) -> logging.Handler:
    """To stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(f"%(asctime)s %(levelname)-7s {role}  %(message)s", datefmt=_DATES))
    return handler


def line(level: str, role: str, text: str) -> str:
    """What the handler of `role` would write."""
    return f"{time.strftime(_DATES)} {level:7} {role}  {text}"


class OneLine(logging.Formatter):
    """Control characters of a message are shown and not obeyed: a line break would forge a line, an escape sequence
    works on the terminal that reads it. A traceback below the message stays as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.translate(_SHOWN)
        return super().formatMessage(record)

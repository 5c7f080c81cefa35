"""A line of the log stays one line, whatever a client, a peer or an engine has put into it."""

import logging

_CONTROLS = {number: f"\\x{number:02x}" for number in (*range(0x20), *range(0x7F, 0xA0))}
_SHOWN = _CONTROLS | {0x2028: "\\u2028", 0x2029: "\\u2029"}


class OneLine(logging.Formatter):
    """Control characters of a message are shown and not obeyed: a line break would forge a line, an escape sequence
    works on the terminal that reads it. A traceback below the message stays as it is."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = record.message.translate(_SHOWN)
        return super().formatMessage(record)

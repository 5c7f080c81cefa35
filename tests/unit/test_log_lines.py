"""The log: nobody can write a line of it but we."""

import io
import logging

import pytest

from engine_bridge.log import OneLine


def written(message: str, *arguments: object, exc_info: BaseException | None = None) -> str:
    """What a handler with this formatter writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OneLine("api-0  %(message)s"))
    handler.handle(logging.LogRecord("x", logging.INFO, "x.py", 1, message, arguments, exc_info and _info(exc_info)))
    return stream.getvalue()


def _info(error: BaseException) -> tuple[type[BaseException], BaseException, None]:
    return type(error), error, None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nengine  ERROR forged", "a\\x0aengine  ERROR forged"),
        ("a\r\x1b[2Kb", "a\\x0d\\x1b[2Kb"),
        ("a\x85b\u2028c\x9b1m", "a\\x85b\\u2028c\\x9b1m"),
        ("Grüße ☃ 😀", "Grüße ☃ 😀"),
    ],
)
def test_what_a_stranger_puts_into_a_message_stays_in_its_line(text: str, shown: str) -> None:
    assert written("%s is gone", text) == f"api-0  {shown} is gone\n"


def test_a_traceback_keeps_its_lines() -> None:
    assert written("failed", exc_info=ValueError("why")) == "api-0  failed\nValueError: why\n"

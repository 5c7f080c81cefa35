"""What values flags take, with a message that says what is right."""

import argparse
from collections.abc import Callable
from typing import TypeVar

N = TypeVar("N", int, float)


def at_least(least: N) -> Callable[[str], N]:
    """A number of the type of `least`, and not below it."""
    kind = type(least)

    def read(text: str) -> N:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not value >= least:  # nan, too
            raise argparse.ArgumentTypeError(f"must be at least {least:g}, not {text}")
        return value

    return read

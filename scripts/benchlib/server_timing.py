"""The `Server-Timing` header: how long the server says each stage of a request took.

    server-timing: parse;dur=0.05, render;dur=0.11, tokenize;dur=0.20, queue;dur=0.02, engine;dur=5.1

Milliseconds, as the specification says (https://www.w3.org/TR/server-timing/); a metric without a duration is left out.
"""

import re
from collections.abc import Iterable

from benchlib.stats import summarize

_HEADER = re.compile(rb"\r\nserver-timing:[ \t]*([^\r]*)")
_METRIC = re.compile(rb"([\w!#$%&'*+.^`|~-]+)[^,]*?;[ \t]*dur=\"?([0-9.]+)")


def stages(head: bytes) -> dict[str, float]:
    """Stage → seconds, in the server's order; from the head of a reply, in lower case. Empty without the header."""
    found: dict[str, float] = {}
    for header in _HEADER.finditer(head):
        for name, milliseconds in _METRIC.findall(header[1]):
            found[name.decode()] = float(milliseconds) / 1000
    return found


def summaries(heads: Iterable[bytes]) -> dict[str, dict[str, float]]:
    """Of each stage, the summary over all replies that tell it."""
    values: dict[str, list[float]] = {}
    for head in heads:
        for name, seconds in stages(head).items():
            values.setdefault(name, []).append(seconds)
    return {name: summarize(seconds) for name, seconds in values.items()}

"""JSON that was cut off, as the longest whole document that it begins: what a tool call's arguments are worth when
max_tokens ended them. Anthropic's own client reads an unfinished stream in the same way.
"""

import re

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"[^"\\]*(?:\\.[^"\\]*)*")
    | (?P<scalar>(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)(?=[\s,\]}]|\Z))
    | (?P<mark>[{}\[\],:])
    )""",
    re.VERBOSE | re.DOTALL,
)
_CLOSER = {"{": "}", "[": "]"}
_MOST_DEPTH = 100


def completed(text: str) -> str:
    """`text` up to its last whole value, with every open object and list closed; {} where there is none."""
    open_closers: list[str] = []
    best, closers = 0, "{}"
    at = 0
    is_key = False
    while (found := _TOKEN.match(text, at)) and len(open_closers) < _MOST_DEPTH:
        at = found.end()
        mark = found["mark"]
        if mark in (",", ":"):
            is_key = mark == "," and open_closers[-1:] == ["}"]
            continue
        if mark in _CLOSER:
            open_closers.append(_CLOSER[mark])
        elif mark is not None and (not open_closers or open_closers.pop() != mark):
            break
        elif is_key:
            continue
        is_key = mark == "{"
        best, closers = at, "".join(reversed(open_closers))
        if not open_closers:
            break
    return text[:best] + closers

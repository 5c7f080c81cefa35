"""Is this a regular expression that an engine can hold an answer to?

Engines compile it to an automaton, each with a parser of its own. What Python's parser cannot read, with their other
spellings of a few things put into Python's, none of them can; and an automaton grows with what its repeats multiply to.
"""

import re
import warnings

_MOST_CHARACTERS = 8192
_MOST_STATES = 100_000
_MOST_DEPTH = 100

_SPELLINGS = (
    (re.compile(r"\(\?<(?![=!])"), "(?P<"),  # a group's name
    (re.compile(r"\\[pP](?:\{\^?\w+(?:=\w+)?\}|[A-Z])"), "x"),  # a character by its Unicode property
    (re.compile(r"\\u\{[0-9a-fA-F]{1,6}\}"), "x"),
    (re.compile(r"\\z"), r"\\Z"),
)
_REPEAT = re.compile(r"\{(\d{0,9})(?:(,)(\d{0,9}))?\}")


def regex_fault(text: str) -> str | None:
    """What is wrong with it, without a full stop; None if nothing is."""
    if len(text) > _MOST_CHARACTERS:
        return f"it has {len(text)} characters, and at most {_MOST_CHARACTERS} are allowed"
    if _depth(text) > _MOST_DEPTH:
        return "it is nested too deeply"
    python = text
    for spelling, ours in _SPELLINGS:
        python = spelling.sub(ours, python)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what other dialects may mean by the same characters
            re.compile(python)
    except (re.error, OverflowError, RecursionError) as error:
        return f"{error}"
    if _states(text) > _MOST_STATES:
        return f"its repeats multiply to more than {_MOST_STATES}"
    return None


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        if char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")":
            depth -= 1
    return deepest


def _states(text: str) -> int:
    """How many characters it would have with all its counted repeats written out. It compiles."""
    sizes = [0]  # of the groups that are open
    last = 0  # what a repeat would multiply
    at = 0
    while at < len(text):
        char = text[at]
        repeat = _REPEAT.match(text, at) if char == "{" else None
        step = 1
        if repeat is not None:
            sizes[-1] += last * (max(int(repeat[1] or 0), int(repeat[3] or 0), 1) - 1)
            last *= max(int(repeat[1] or 0), int(repeat[3] or 0), 1)
            step = repeat.end() - at
        elif char == "(":
            sizes.append(0)
        elif char == ")":
            last = sizes.pop()
            sizes[-1] += last
        elif char not in "|?*+^$":
            step = _length_of_item(text, at)
            last = 1
            sizes[-1] += 1
        at += step
    return sizes[0]


def _length_of_item(text: str, at: int) -> int:
    """Of an escape, a class, or a character for itself."""
    if text[at] == "\\":
        return 2
    if text[at] != "[":
        return 1
    end = at + 1
    if text.startswith("^", end):
        end += 1
    if text.startswith("]", end):  # the first one in a class is a character
        end += 1
    while end < len(text) and text[end] != "]":
        end += 2 if text[end] == "\\" else 1
    return end + 1 - at

"""Is this obviously no grammar? Each engine has a language of its own; what counts is what they have in common."""

import re

_MOST_CHARACTERS = 256 * 1024
_RULE = re.compile(r"^[ \t]*([A-Za-z_][\w-]*)[ \t]*::=", re.MULTILINE)
_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"'  # a literal
    r"|\[(?:[^\]\\\n]|\\.)*\]"  # a class of characters
    r"|#[^\n]*"
    r"|[()]"
    r"|(?P<unclosed>[\"\[])"
)


def grammar_fault(text: str) -> str | None:
    """What is wrong with it, without a full stop; None if nothing is to be seen."""
    if len(text) > _MOST_CHARACTERS:
        return f"it has {len(text)} characters, and at most {_MOST_CHARACTERS} are allowed"
    if not text.strip():
        return "it is empty"
    if "::=" not in text:
        return None  # Lark's, say, which has other rules
    if not any(rule[1] == "root" for rule in _RULE.finditer(text)):
        return "it has no rule named root"
    return _unclosed(text)


def _unclosed(text: str) -> str | None:
    depth = 0
    for token in _TOKEN.finditer(text):
        if token["unclosed"]:
            what = "literal" if token["unclosed"] == '"' else "class of characters"
            return f"the {what} in line {_line(text, token.start())} has no end"
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth < 0:
            return f"line {_line(text, token.start())} closes a parenthesis that was not opened"
    return "a parenthesis is not closed" if depth else None


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1

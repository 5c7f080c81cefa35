"""The parameters of a request's URL."""

from urllib.parse import parse_qs

from apiserver.errors import InvalidRequest, shown
from apiserver.http.call import Call

_WORDS = {"true": True, "1": True, "false": False, "0": False}


class Query:
    """Of a parameter that is given more than once, the last one counts, as of a key in JSON."""

    def __init__(self, call: Call) -> None:
        self._values = parse_qs(call.scope["query_string"].decode("latin-1"), keep_blank_values=True)

    def text(self, name: str) -> str | None:
        values = self._values.get(name)
        return None if values is None else values[-1]

    def flag(self, name: str) -> bool:
        """False where it is not given. Raises InvalidRequest for another word than true or false."""
        text = self.text(name)
        if text is None:
            return False
        if text.lower() not in _WORDS:
            raise InvalidRequest(f"{name} must be true or false, not {shown(text)}.", param=name)
        return _WORDS[text.lower()]

    def number(self, name: str) -> int | None:
        """A whole number from 0. Raises InvalidRequest."""
        text = self.text(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise InvalidRequest(f"{name} must be a whole number from 0, not {shown(text)}.", param=name)
        return int(text)

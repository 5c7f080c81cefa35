"""What every stream of OpenAI's form keeps, by its bytes: chat, completions, `/generate`, `/inference/v1/generate`.

Which of them a stream is, its own documents say.
"""

import json
from typing import Any

DONE = "[DONE]"


def frames(data: bytes, *, whole: bool = True) -> list[Any]:
    """The documents of a stream's bytes, [DONE] as that word. Each frame is one line of data.

    `whole=False` is for a stream that its client left: the frame that it was in does not count.
    """
    *lines, rest = data.decode(errors="strict" if whole else "ignore").split("\n\n")
    assert rest == "" or not whole, f"the stream ends with a whole frame: {rest}"
    documents: list[Any] = []
    for line in lines:
        assert line.startswith("data: "), line
        assert "\n" not in line
        text = line.removeprefix("data: ")
        documents.append(DONE if text == DONE else json.loads(text))
    return documents


def check(documents: list[Any], *, whole: bool = True) -> None:
    """The grammar. A stream ends with [DONE] and nothing after; before it, with an end for each choice, or an error."""
    stream = _Stream()
    for document in documents:
        stream.take(document)
    if whole:
        assert stream.is_done, "the stream ends with [DONE]"


class _Stream:
    """Where a stream is; a document that has no place there is an AssertionError."""

    def __init__(self) -> None:
        self.is_done = False
        self._failed = False
        self._has_usage = False
        self._name: Any = None
        self._choices: dict[int, _Choice] = {}

    def take(self, document: Any) -> None:
        assert not self.is_done, f"nothing follows [DONE]: {document}"
        if document == DONE:
            self._end()
            return
        assert not self._failed, f"nothing but [DONE] follows an error: {document}"
        if "error" in document:
            assert set(document) == {"error"}
            assert set(document["error"]) == {"message", "type", "param", "code"}
            assert not self._choices or self._open, "what has ended does not fail"
            self._failed = True
        elif "meta_info" in document:
            self._native(document)
        else:
            self._chunk(document)

    @property
    def _open(self) -> list[int]:
        return [index for index, choice in self._choices.items() if not choice.has_ended]

    def _end(self) -> None:
        assert self._failed or self._choices, "a stream says something"
        assert self._failed or not self._open, f"choices {self._open} have no end"
        assert sorted(self._choices) == list(range(len(self._choices))) or self._failed, "choices count from 0"
        self.is_done = True

    def _native(self, document: dict[str, Any]) -> None:
        choice = self._choices.setdefault(document.get("index", 0), _Choice())
        meta = document["meta_info"]
        choice.told(meta["finish_reason"], meta["id"])
        assert meta["completion_tokens"] >= choice.tokens, "tokens are counted up"
        choice.tokens = meta["completion_tokens"]

    def _chunk(self, document: dict[str, Any]) -> None:
        name = [document.get(key) for key in ("id", "object", "created", "model", "request_id")]
        assert self._name in (None, name), "every chunk is of one answer"
        self._name = name
        if not document["choices"]:
            assert document["usage"] is not None
            assert not self._has_usage, "the usage of all comes once"
            assert not self._open, "the usage of all comes when all have ended"
            self._has_usage = True
            return
        assert not self._has_usage, "nothing comes behind the usage of all"
        for entry in document["choices"]:
            choice = self._choices.setdefault(entry["index"], _Choice())
            choice.told(entry["finish_reason"])
            if "delta" in entry:
                choice.delta(entry["delta"])


class _Choice:
    """One choice of a stream."""

    def __init__(self) -> None:
        self.has_ended = False
        self.tokens = 0
        self._name: str | None = None
        self._has_role = False
        self._calls = 0

    def told(self, finish_reason: Any, name: str | None = None) -> None:
        assert not self.has_ended, "a choice ends once, and nothing comes behind its end"
        assert self._name in (None, name)
        self._name = name
        self.has_ended = finish_reason is not None

    def delta(self, delta: dict[str, Any]) -> None:
        assert self._has_role == ("role" not in delta), "the role comes first, and once"
        self._has_role = True
        for call in delta.get("tool_calls", ()):
            begins = "id" in call
            assert call["index"] == (self._calls if begins else self._calls - 1), "calls come one after another"
            self._calls += begins
            assert begins == ("name" in call["function"]), "the first delta of a call names it, and no other"
            assert isinstance(call["function"]["arguments"], str)

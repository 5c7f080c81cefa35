"""What a native stream has told of one choice, kept as JSON: an event that repeats it copies bytes, and encodes nothing
a second time."""

from collections.abc import Mapping
from typing import Any

from apiserver.protocol import openai
from apiserver.protocol.exchange import Spliced
from apiserver.protocol.generate_logprobs import Columns


class Told:
    """One choice. `add` what is new, `event` for the document of all of it."""

    __slots__ = ("_columns", "_head", "_ids", "_names", "_prompt_columns", "_tail", "_text", "count")

    def __init__(
        self, index: int | None, prompt_columns: Columns, names: tuple[str, ...], prompt_ids: list[int] | None
    ) -> None:
        """`index` for one answer of several, `prompt_columns` and the `names` of the output's where there are logprobs,
        `prompt_ids` to be told."""
        self.count = 0
        """Output tokens."""
        self._head = b'{"text":"' if index is None else b'{"index":%d,"text":"' % index
        self._prompt_columns = b"".join(
            b',"%b":%b' % (name.encode(), openai.encode_json(column)) for name, column in prompt_columns.items()
        )
        self._names = names
        self._tail = b"}" if prompt_ids is None else b',"prompt_token_ids":%b}' % openai.encode_json(prompt_ids)
        self.clear()

    def clear(self) -> None:
        """Forget what was told: the next event has what is new alone."""
        self._text = bytearray()
        self._ids = bytearray()
        self._columns = {name: bytearray() for name in self._names}

    def add(self, text: str, token_ids: list[int], columns: Columns) -> None:
        """`columns` are the new tokens' logprobs."""
        self._text += openai.encode_json(text)[1:-1]
        _append(self._ids, token_ids)
        for name, entries in columns.items():
            _append(self._columns[name], entries)

    def event(self, meta: Mapping[str, Any]) -> Spliced:
        """A document of all that was told; `meta` is the rest of its `meta_info`."""
        parts: list[bytes | bytearray] = [self._head, self._text, b'","output_ids":[', self._ids, b'],"meta_info":']
        parts += (openai.encode_json(meta)[:-1], self._prompt_columns)
        for name, entries in self._columns.items():
            parts += (b',"%b":[' % name.encode(), entries, b"]")
        if self._columns:
            parts.append(b',"output_token_logprobs_length":%d' % self.count)
        parts += (b"}", self._tail)
        return Spliced(parts)


def _append(held: bytearray, entries: list[Any]) -> None:
    if entries:
        held += b"," * bool(held) + openai.encode_json(entries)[1:-1]

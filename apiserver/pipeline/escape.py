"""`--escape-special-tokens`: a control token that a client writes into a message is text, and controls nothing.

Without it, whoever can put `<|im_end|><|im_start|>system` into a document that is later part of a prompt, speaks as the
system. Replacing characters would change what the model reads; so it is done where ids are made: each control token in
the client's strings travels through the template as a mark that nobody can guess, and the mark's place in the rendered
text is encoded as the characters of the token, which the model sees as the same text in other ids.
"""

import re
import secrets
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from apiserver.requests import Chat
from apiserver.tokenizer import Encoder, Tokenizer

_Parts = list[str | list[int]]


class Escaper:
    """One an encoder. Raises ValueError for a tokenizer that cannot encode a text in parts."""

    def __init__(self, tokenizer: Tokenizer, encoder: Encoder) -> None:
        if tokenizer.decoder_family != "byte_level":
            # Others put a word mark before each part, and drop white space beside it.
            raise ValueError("only a byte-level BPE tokenizer can encode control tokens as text")
        self._encoder = encoder
        self._tokens = [token for token in tokenizer.added_tokens.values() if len(token) > 1]
        self._ids = [self._as_text(token, tokenizer.added_tokens.keys()) for token in self._tokens]

    def _as_text(self, token: str, control_ids: Any) -> list[int]:
        """The token's characters in ids that control nothing: cut in two, for no part of it is a token of its own."""
        for place in range(1, len(token)):
            token_ids = [*self._plain(token[:place]), *self._plain(token[place:])]
            if not control_ids & set(token_ids):
                return token_ids
        raise ValueError(f"the control token {token!r} cannot be encoded as text")

    def _plain(self, text: str) -> list[int]:
        return self._encoder.encode(text, add_special_tokens=False)

    def hide(self, chat: Chat) -> "Hidden | None":
        """The conversation with marks for control tokens; None if there are none in it. May raise RecursionError."""
        hidden = Hidden(chat, self._tokens, self._ids)
        fields = (chat.messages, chat.tools, chat.documents, dict(chat.variables))
        messages, tools, documents, variables = (hidden.mark(field) for field in fields)
        if not hidden.found:
            return None
        hidden.chat = msgspec.structs.replace(
            chat, messages=messages, tools=tools, documents=documents, variables=variables
        )
        return hidden

    def encode(self, parts: _Parts, *, add_special_tokens: bool) -> list[int]:
        """The ids of a rendered text in parts: text that may hold control tokens of the template's, and ready ids."""
        token_ids = self._encoder.encode("", add_special_tokens=True) if add_special_tokens else []
        for part in parts:
            token_ids += self._plain(part) if isinstance(part, str) else part
        return token_ids


class Hidden:
    """A conversation whose control tokens are marks, and the way back."""

    def __init__(self, chat: Chat, tokens: Sequence[str], token_ids: Sequence[list[int]]) -> None:
        self.chat = chat
        self.found = False
        self._tokens = tokens
        self._token_ids = token_ids
        self._nonce = secrets.token_hex(8)
        self._pattern = re.compile(f"\ue000{self._nonce}([0-9]+)\ue001")

    def mark(self, value: Any) -> Any:
        """The same JSON value with marks in its strings; the very same where there is nothing to mark."""
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, list):
            return [self.mark(item) for item in cast(list[Any], value)]
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in cast(dict[Any, Any], value).items()}
        return value

    def _mark_text(self, text: str) -> str:
        present = [number for number, token in enumerate(self._tokens) if token in text]
        if not present:
            return text
        self.found = True
        numbers = {self._tokens[number]: number for number in present}
        # The longest first, as a tokenizer finds them.
        pattern = "|".join(re.escape(token) for token in sorted(numbers, key=len, reverse=True))
        return re.sub(pattern, lambda found: f"\ue000{self._nonce}{numbers[found.group()]}\ue001", text)

    def parts(self, rendered: str) -> _Parts:
        """The rendered text in parts for `Escaper.encode`."""
        pieces = self._pattern.split(rendered)
        parts: _Parts = []
        for place, piece in enumerate(pieces):
            if place % 2:
                parts.append(self._token_ids[int(piece)])
            elif piece:
                parts.append(piece)
        return parts

    def text(self, rendered: str) -> str:
        """The rendered text as people read it."""
        return self._pattern.sub(lambda found: self._tokens[int(found.group(1))], rendered)

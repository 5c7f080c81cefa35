"""Token ids → text, one choice at a time: whole characters only, in linear time, equal to the tokenizer's own decode.

Theory. `tokenizers` decodes a whole list; a stream needs the difference that each id makes. Its `DecodeStream` computes
that by decoding the held ids again and again (quadratic on runs of invalid bytes), never gives back the tail of an
unfinished character, and fails where a text changes under it. But what a decoder does is known from its description,
and two families cover nearly every model that generates:

- byte level: each token is some bytes, the text is their UTF-8 decoding with replacement. An incremental UTF-8 decoder
  does the same in one pass (Rust's and Python's replacement both follow Unicode's "maximal subpart" rule).
- byte fallback (sentencepiece): pieces are text, `<0x..>` tokens are bytes; a run of byte tokens that is not valid
  UTF-8 as a whole becomes one U+FFFD a byte, so a run can be told only when it ends.

Anything else (WordPiece, Metaspace, a sequence of steps) is decoded through a window: the new ids behind a few old
ones, since what a token adds depends on its place (first or not) and on its neighbours, never on what is far away.
"""

import codecs
from typing import Protocol

from apiserver.tokenizer import Tokenizer

_utf8 = codecs.getincrementaldecoder("utf-8")

_CONTEXT = 8  # ids that stay in the window: more bytes than a character has, and one token at least before the next
_WINDOW = 32  # ids at which the window is cut back to that; bounds what one token costs


class Detokenizer(Protocol):
    """One choice's decoder: `feed` every id in order, then `flush` once."""

    def feed(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


def make_detokenizer(
    tokenizer: Tokenizer, *, skip_special_tokens: bool, kept: frozenset[int] = frozenset()
) -> Detokenizer:
    """The one that fits this tokenizer's decoder. `kept` are special tokens that are told all the same."""
    skipped = tokenizer.special_ids - kept if skip_special_tokens else frozenset[int]()
    match tokenizer.decoder_family:
        case "byte_level":
            return _ByteLevel(tokenizer, skipped)
        case "byte_fallback":
            return _ByteFallback(tokenizer, skipped)
        case "other":
            return _Windowed(tokenizer, skipped)


class _ByteLevel:
    __slots__ = ("_bytes_of", "_decode", "_skipped")

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._decode = _utf8("replace").decode
        self._skipped = skipped

    def feed(self, token_id: int) -> str:
        if token_id in self._skipped:
            return ""
        return self._decode(self._bytes_of(token_id))

    def flush(self) -> str:
        return self._decode(b"", True)


class _ByteFallback:
    __slots__ = ("_run", "_skipped", "_strip", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._run = bytearray()
        self._strip = tokenizer.strips_leading_space

    def feed(self, token_id: int) -> str:
        tokenizer = self._tokenizer
        if token_id in self._skipped:
            return ""
        byte = tokenizer.fallback_byte(token_id)
        if byte is not None:
            self._run.append(byte)
            return ""
        text = tokenizer.token_bytes(token_id).decode()
        if not text and not tokenizer.has_token(token_id):
            return ""  # the decoder never sees such an id, so it does not end a run of bytes either
        return self._lead(self._end_run() + text)

    def flush(self) -> str:
        return self._lead(self._end_run())

    def _end_run(self) -> str:
        if not self._run:
            return ""
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(run)

    def _lead(self, text: str) -> str:
        """The decoder drops one space at the very start of the text."""
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class _Windowed:
    __slots__ = ("_skipped", "_tokenizer", "_told", "_window")

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._window: list[int] = []
        self._told = 0  # characters of the window's text

    def feed(self, token_id: int) -> str:
        tokenizer = self._tokenizer
        if token_id in self._skipped or not tokenizer.has_token(token_id):
            return ""  # the decoder never sees it, so it must not be the token before another
        self._window.append(token_id)
        if tokenizer.fallback_byte(token_id) is not None:
            return ""  # a run of bytes can be told only when it ends
        text = self._decode()
        # One more byte may turn the U+FFFD at the end into a character; what stands before it is decided.
        size = _decided(text)
        delta = text[self._told : size]
        if len(self._window) >= _WINDOW:
            del self._window[:-_CONTEXT]
            self._told = _decided(self._decode())
        else:
            self._told = max(self._told, size)
        return delta

    def flush(self) -> str:
        return self._decode()[self._told :] if self._window else ""

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)  # what is skipped was left out


def _decided(text: str) -> int:
    """How many characters of this text more tokens cannot change."""
    return len(text) - text.endswith("\ufffd")

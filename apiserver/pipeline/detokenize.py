"""Token ids → text, one choice at a time: whole characters only, in linear time, equal to the tokenizer's own decode.

Theory. `tokenizers` decodes a whole list; a stream needs the difference that each id makes. `DecodeStream` computes it
by decoding the held ids again and again (quadratic on runs of invalid bytes) and never gives back the tail of an
unfinished character. But what a decoder does is known from its description, and two families cover every model that
generates:

- byte level: each token is some bytes, the text is their UTF-8 decoding with replacement. An incremental UTF-8 decoder
  does the same in one pass (Rust's and Python's replacement both follow Unicode's "maximal subpart" rule).
- byte fallback (sentencepiece): pieces are text, `<0x..>` tokens are bytes; a run of byte tokens that is not valid
  UTF-8 as a whole becomes one U+FFFD a byte, so a run can be told only when it ends.

Anything else goes through `DecodeStream`, with the held ids kept here so that the tail is not lost.
"""

import codecs
from typing import Protocol

from apiserver.tokenizer import Tokenizer

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """One choice's decoder: `feed` every id in order, then `flush` once."""

    def feed(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


def make_detokenizer(tokenizer: Tokenizer, *, skip_special_tokens: bool) -> Detokenizer:
    """The one that fits this tokenizer's decoder."""
    match tokenizer.decoder_family:
        case "byte_level":
            return _ByteLevel(tokenizer, skip_special_tokens)
        case "byte_fallback":
            return _ByteFallback(tokenizer, skip_special_tokens)
        case "other":
            return _Stepwise(tokenizer, skip_special_tokens)


class _ByteLevel:
    __slots__ = ("_bytes_of", "_decode", "_special")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._decode = _utf8("replace").decode
        self._special = tokenizer.special_ids if skip_special_tokens else frozenset[int]()

    def feed(self, token_id: int) -> str:
        if token_id in self._special:
            return ""
        return self._decode(self._bytes_of(token_id))

    def flush(self) -> str:
        return self._decode(b"", True)


class _ByteFallback:
    __slots__ = ("_run", "_special", "_strip", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._run = bytearray()
        self._strip = tokenizer.strips_leading_space

    def feed(self, token_id: int) -> str:
        if token_id in self._special:
            return ""
        byte = self._tokenizer.fallback_byte(token_id)
        if byte is not None:
            self._run.append(byte)
            return ""
        return self._lead(self._end_run() + self._tokenizer.token_bytes(token_id).decode())

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


class _Stepwise:
    __slots__ = ("_held", "_skip", "_step", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._step = tokenizer.decode_stream(skip_special_tokens)
        self._held: list[int] = []

    def feed(self, token_id: int) -> str:
        self._held.append(token_id)
        text = self._step(token_id)
        if text is None:
            return ""
        self._held.clear()
        return text

    def flush(self) -> str:
        return self._tokenizer.decode(self._held, skip_special_tokens=self._skip) if self._held else ""

"""Text ↔ token ids. One backend an API-server process; nobody shares one between threads.

A backend keeps no state between calls: no padding, no truncation, no counts. `tokenizers` objects that carry such
state raise "Already borrowed" when two users meet, and answer differently after a stranger's call.
"""

from collections.abc import Callable
from typing import Literal, Protocol

DecoderFamily = Literal["byte_level", "byte_fallback", "other"]


class Encoder(Protocol):
    """Text → ids. The hot half, and the one with a choice of backends."""

    name: str
    """Which backend this is, for the log and for people."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def encode_packed(self, text: str, *, add_special_tokens: bool) -> bytes:
        """The same ids as the wire has them (`engine_bridge.wire.pack_ids`)."""
        ...

    def encode_truncated(
        self, text: str, *, add_special_tokens: bool, most: int, side: Literal["left", "right"]
    ) -> list[int]:
        """Like encode, but at most `most` ids: text tokens go, special tokens stay. `left` keeps the text's end."""
        ...


class Tokenizer(Protocol):
    """Ids → text, and what is to be known of the vocabulary. All calls are synchronous and do no I/O."""

    vocab_size: int
    """One more than the largest id, added tokens included."""
    longest_token_bytes: int
    """No token stands for more bytes of text than this, where the tokenizer keeps its text."""
    keeps_text: bool
    """Whether all of a text is in its tokens. Where white space is dropped, or a word of any length becomes one
    [UNK], the length of a text says nothing about the number of its tokens."""
    added_tokens: dict[int, str]
    """Those that are found in a text before anything else happens to it: control tokens, and what else was added."""
    special_ids: frozenset[int]
    """The ids that `skip_special_tokens` leaves out."""
    decoder_family: DecoderFamily
    strips_leading_space: bool
    """Whether decoding drops one space at the start of the text (sentencepiece)."""
    token_bytes: Callable[[int], bytes]
    """The bytes that one token adds to a text; empty for ids that the tokenizer does not know."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str: ...

    def has_token(self, token_id: int) -> bool:
        """Whether the id stands for a token: a model may have more ids than its tokenizer, and decoding drops those."""
        ...

    def fallback_byte(self, token_id: int) -> int | None:
        """The byte that a `<0x..>` token stands for, where the decoder falls back on bytes; None for every other id."""
        ...

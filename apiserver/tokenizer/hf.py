"""The `tokenizers` backend: any tokenizer.json.

`encode_batch_fast` always, never `encode`: it builds no offsets (half the time on long text) and lets go of the GIL.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

from apiserver.tokenizer import DecoderFamily


class HfTokenizer:
    """See `apiserver.tokenizer.Tokenizer`."""

    name = "hf"

    def __init__(self, tokenizer_json: str) -> None:
        backend = Backend.from_str(tokenizer_json)
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.decoder_family: DecoderFamily
        self.decoder_family, self.strips_leading_space = _decoder_family(backend)
        table = _BYTE_TABLES[self.decoder_family](backend)
        self._table = table
        self.token_bytes: Callable[[int], bytes] = table.__getitem__
        self.longest_token_bytes = max((len(token.encode()) for token in vocabulary), default=1)

    @classmethod
    def load(cls, path: Path) -> "HfTokenizer":
        """From a tokenizer.json file. Raises OSError, or whatever `tokenizers` says of a broken file."""
        return cls(path.read_text(encoding="utf-8"))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_batch(self, texts: list[str], *, add_special_tokens: bool) -> list[list[int]]:
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in encodings]

    def encode_truncated(
        self, text: str, *, add_special_tokens: bool, most: int, side: Literal["left", "right"]
    ) -> list[int]:
        encoding = self._backend.encode_batch_fast([text], add_special_tokens=False)[0]
        special = self._backend.num_special_tokens_to_add(is_pair=False) if add_special_tokens else 0
        encoding.truncate(max(0, most - special), direction="left" if side == "left" else "right")
        return self._backend.post_process(encoding, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def decode_stream(self, skip_special_tokens: bool) -> Callable[[int], str | None]:
        stream = DecodeStream(skip_special_tokens=skip_special_tokens)
        backend = self._backend
        return lambda token_id: stream.step(backend, token_id)

    def fallback_byte(self, token_id: int) -> int | None:
        token = self._backend.id_to_token(token_id)
        if token is not None and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return int(token[3:5], 16)
            except ValueError:
                return None
        return None


def _decoder_family(backend: Backend) -> tuple[DecoderFamily, bool]:
    """Which family the decoder belongs to, read off its own description; and whether it strips a leading space."""
    decoder = backend.decoder
    if decoder is None:
        return "other", False
    state = cast(dict[str, Any], json.loads(decoder.__getstate__()))
    if state["type"] == "ByteLevel":
        return "byte_level", False
    steps = cast(list[dict[str, Any]], state.get("decoders", [])) if state["type"] == "Sequence" else []
    match [step["type"] for step in steps]:
        case ["ByteLevel"]:
            return "byte_level", False
        case ["Replace", "ByteFallback", "Fuse"] if _replaces_marker(steps[0]):
            return "byte_fallback", False
        case ["Replace", "ByteFallback", "Fuse", "Strip"] if _replaces_marker(steps[0]) and _strips_one(steps[3]):
            return "byte_fallback", True
        case _:
            return "other", False


def _replaces_marker(step: dict[str, Any]) -> bool:
    return step.get("pattern") == {"String": "▁"} and step.get("content") == " "


def _strips_one(step: dict[str, Any]) -> bool:
    return step.get("content") == " " and step.get("start") == 1 and step.get("stop") == 0


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's mapping of bytes to printable characters, inverted (as the ByteLevel decoder has it)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    shifted = 0
    for byte in range(256):
        if byte not in printable:
            alphabet[chr(256 + shifted)] = byte
            shifted += 1
    return alphabet


class _ByteLevelTable(dict[int, bytes]):
    """Token id → bytes, filled as ids are seen: a whole vocabulary would cost megabytes in every process."""

    _alphabet = _byte_level_alphabet()

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) or ""
        try:
            raw = bytes([self._alphabet[character] for character in token])
        except KeyError:  # an added token with other characters stands for itself
            raw = token.encode()
        self[token_id] = raw
        return raw


class _PieceTable(_ByteLevelTable):
    """The same for sentencepiece vocabularies."""

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) or ""
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            raw = bytes([int(token[3:5], 16)])
        else:
            raw = token.replace("▁", " ").encode()
        self[token_id] = raw
        return raw


class _DecodedTable(_ByteLevelTable):
    """The same where only the tokenizer knows: what it makes of the token alone."""

    def __missing__(self, token_id: int) -> bytes:
        raw = self._backend.decode([token_id], skip_special_tokens=False).encode()
        self[token_id] = raw
        return raw


_BYTE_TABLES: dict[DecoderFamily, type[_ByteLevelTable]] = {
    "byte_level": _ByteLevelTable,
    "byte_fallback": _PieceTable,
    "other": _DecodedTable,
}

"""The `tokenizers` backend: any tokenizer.json.

`encode_batch_fast` always, never `encode`: it builds no offsets (half the time on long text) and lets go of the GIL.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from apiserver.tokenizer import DecoderFamily
from engine_bridge.wire import pack_ids

_MANY_IDS = 512  # of so many on, decoding lets go of the GIL

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")  # what the ByteFallback decoder takes for a byte


class HfTokenizer:
    """Both an `apiserver.tokenizer.Tokenizer` and an `Encoder`."""

    name = "hf"

    def __init__(self, tokenizer_json: str) -> None:
        backend = Backend.from_str(tokenizer_json)
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        vocabulary = backend.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        self.added_tokens = {token_id: token.content for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        steps = _steps(backend.decoder)
        self.decoder_family: DecoderFamily
        self.decoder_family, self.strips_leading_space = _decoder_family(steps)
        self.token_bytes: Callable[[int], bytes] = _byte_table(backend, steps).__getitem__
        falls_back = any(step["type"] == "ByteFallback" for step in steps)
        self._fallback_bytes = _FallbackTable(backend) if falls_back else None
        self.keeps_text = _keeps_text(backend, vocabulary)
        self.longest_token_bytes = max((len(token.encode()) for token in vocabulary), default=1)

    @classmethod
    def load(cls, path: Path) -> "HfTokenizer":
        """From a tokenizer.json file. Raises OSError, or whatever `tokenizers` says of a broken file."""
        return cls(path.read_text(encoding="utf-8"))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def encode_packed(self, text: str, *, add_special_tokens: bool) -> bytes:
        return pack_ids(self.encode(text, add_special_tokens=add_special_tokens))

    def encode_truncated(
        self, text: str, *, add_special_tokens: bool, most: int, side: Literal["left", "right"]
    ) -> list[int]:
        encoding = self._backend.encode_batch_fast([text], add_special_tokens=False)[0]
        special = self._backend.num_special_tokens_to_add(is_pair=False) if add_special_tokens else 0
        encoding.truncate(max(0, most - special), direction="left" if side == "left" else "right")
        return self._backend.post_process(encoding, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        if len(token_ids) < _MANY_IDS:
            return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        # `decode` holds the GIL: 36,000 ids would stop the loop for 20 ms, from whatever thread.
        return self._backend.decode_batch([token_ids], skip_special_tokens=skip_special_tokens)[0]

    def has_token(self, token_id: int) -> bool:
        return self._backend.id_to_token(token_id) is not None

    def fallback_byte(self, token_id: int) -> int | None:
        return None if self._fallback_bytes is None else self._fallback_bytes[token_id]


def _steps(component: Any) -> list[dict[str, Any]]:
    """A component's own description, as the list of its steps."""
    if component is None:
        return []
    state = cast(dict[str, Any], json.loads(component.__getstate__()))
    return _flattened(state)


def _flattened(step: dict[str, Any]) -> list[dict[str, Any]]:
    if step["type"] != "Sequence":
        return [step]
    names = ("normalizers", "pretokenizers", "decoders")  # each kind of component has its own
    steps = next(cast(list[dict[str, Any]], step[name]) for name in names if name in step)
    return [inner for outer in steps for inner in _flattened(outer)]


def _keeps_text(backend: Backend, vocabulary: Mapping[str, int]) -> bool:
    """See `apiserver.tokenizer.Tokenizer`; false where it is not certain."""
    steps = [*_steps(backend.normalizer), *_steps(backend.pre_tokenizer)]
    # What strips white space beside itself takes any amount of it.
    strips = any(token.lstrip or token.rstrip for token in backend.get_added_tokens_decoder().values())
    if strips or not isinstance(backend.model, BPE) or not all(map(_keeps, steps)):
        return False
    # A byte that the vocabulary does not have is left out (SmolLM2 lacks 21).
    by_bytes = any(step["type"] == "ByteLevel" for step in steps)
    known = vocabulary.keys() >= _ALPHABET.keys() if by_bytes else vocabulary.keys() >= _BYTE_TOKENS
    return known and (by_bytes or backend.model.byte_fallback)


def _keeps(step: dict[str, Any]) -> bool:
    match step:
        case {"type": "NFC" | "Prepend" | "ByteLevel" | "Digits" | "Metaspace"}:
            return True
        case {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}:
            return True
        case {"type": "Split", "behavior": behavior}:
            return behavior != "Removed"
        case _:
            return False


def _decoder_family(steps: list[dict[str, Any]]) -> tuple[DecoderFamily, bool]:
    """Which family a decoder of these steps belongs to; and whether it strips a leading space."""
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


_ALPHABET = _byte_level_alphabet()
_BYTE_TOKENS = {f"<0x{byte:02X}>" for byte in range(256)}


class _ByteLevelTable(dict[int, bytes]):
    """Token id → bytes, filled as ids are seen: a whole vocabulary would cost megabytes in every process."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) or ""
        try:
            raw = bytes([_ALPHABET[character] for character in token])
        except KeyError:  # an added token with other characters stands for itself
            raw = token.encode()
        self[token_id] = raw
        return raw


class _PieceTable(_ByteLevelTable):
    """The same for sentencepiece vocabularies."""

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) or ""
        byte = _fallback_byte(token)
        raw = token.replace("▁", " ").encode() if byte is None else bytes((byte,))
        self[token_id] = raw
        return raw


class _DecodedTable(_ByteLevelTable):
    """The same where only the tokenizer knows: what a second token adds to an equal first one."""

    def __missing__(self, token_id: int) -> bytes:
        once = self._backend.decode([token_id], skip_special_tokens=False)
        twice = self._backend.decode([token_id, token_id], skip_special_tokens=False)
        # Alone, a token is the first of its text, where word marks mean nothing: it would lack the space before it.
        text = twice.removeprefix(once) if twice.startswith(once) and len(twice) > len(once) else once
        self[token_id] = raw = text.encode()
        return raw


class _FallbackTable(dict[int, int | None]):
    """Token id → the byte that it stands for, filled as ids are seen."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend

    def __missing__(self, token_id: int) -> int | None:
        byte = self[token_id] = _fallback_byte(self._backend.id_to_token(token_id) or "")
        return byte


def _fallback_byte(token: str) -> int | None:
    found = _BYTE_TOKEN.fullmatch(token)
    return None if found is None else int(found.group(1), 16)


def _byte_table(backend: Backend, steps: list[dict[str, Any]]) -> _ByteLevelTable:
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return _ByteLevelTable(backend)
    return _PieceTable(backend) if "ByteFallback" in kinds else _DecodedTable(backend)

"""What a GGUF file's header says of its model: the context it was trained for, its end tokens, its tokens' bytes.

Our own reader, of the few dozen lines that this takes: the `gguf` package makes an object of each of the hundred
thousand tokens and merges and needs 1.8 s for what takes 0.1 s here, and llama.cpp's Python binding tells none of it.
"""

import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING = 8
_ARRAY = 9

# llama.cpp ends a generation at more tokens than the file names: it also knows these texts.
_END_TEXTS = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"),
    *("<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>", "<eos>"),
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class GgufHeader:
    """The key-value section of a GGUF file. Raises ValueError with one line if the file is not one."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ValueError(f"{path} is not a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                try:
                    self._fields = dict(_read_fields(data))
                except (struct.error, KeyError, UnicodeDecodeError) as error:
                    raise ValueError(f"{path} is a damaged GGUF file") from error
        self._ids_by_piece: dict[bytes, int] | None = None  # made when first needed

    @property
    def context_length(self) -> int:
        """The most tokens that the model was trained for; 2,048 where the file does not say."""
        value = self._fields.get(f"{self._fields.get('general.architecture')}.context_length")
        return value if isinstance(value, int) else 2048

    @property
    def vocab_size(self) -> int:
        """How many token ids there are."""
        return len(self._tokens)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokens that end a generation; the file's own end-of-sequence first."""
        named = [self._fields.get(f"tokenizer.ggml.{key}") for key in _END_KEYS]
        ends = {text.encode() for text in _END_TEXTS}
        found = [token_id for token_id, token in enumerate(self._tokens) if token in ends]
        return tuple(dict.fromkeys(token_id for token_id in [*named, *found] if isinstance(token_id, int)))

    def piece(self, token_id: int) -> bytes:
        """The bytes that a token spells; for a control token its name."""
        is_byte_level = self._fields.get("tokenizer.ggml.model") == b"gpt2"
        token = self._tokens[token_id].decode(errors="replace")
        return _byte_level_piece(token) if is_byte_level else _sentencepiece_piece(token)

    def split(self, text: bytes, count: int) -> list[int]:
        """The ids of `count` tokens that spell these few bytes, or of as few tokens as do if no `count` can.

        Of several splittings it takes the one whose first tokens are longest. Empty if none exists.
        """
        for pieces in (count, *range(1, len(text) + 1)):
            token_ids = self._search(text, pieces)
            if token_ids is not None:
                return token_ids
        return []

    def _search(self, text: bytes, count: int) -> list[int] | None:
        if not count:
            return None if text else []
        pieces = self._pieces_to_ids()
        for end in range(len(text) - count + 1, 0, -1):
            token_id = pieces.get(text[:end])
            if token_id is not None and (rest := self._search(text[end:], count - 1)) is not None:
                return [token_id, *rest]
        return None

    @property
    def _tokens(self) -> list[bytes]:
        tokens = self._fields.get("tokenizer.ggml.tokens")
        return tokens if isinstance(tokens, list) else []

    def _pieces_to_ids(self) -> dict[bytes, int]:
        if self._ids_by_piece is None:
            self._ids_by_piece = {self.piece(token_id): token_id for token_id in range(self.vocab_size)}
        return self._ids_by_piece


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's printable stand-ins for bytes: a code point → its byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level_piece(token: str) -> bytes:
    try:
        return bytes(_ALPHABET[ord(char)] for char in token)
    except KeyError:
        return token.encode()  # an added token is spelled as it is


def _sentencepiece_piece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x"):
        return bytes.fromhex(token[3:5])
    return token.replace("▁", " ").encode()


_Value = int | float | bool | bytes | list[bytes] | None


def _read_fields(data: mmap.mmap) -> Iterator[tuple[str, _Value | str]]:
    (count,) = struct.unpack_from("<Q", data, 16)
    at = 24
    for _ in range(count):
        key, at = _read_string(data, at)
        (kind,) = struct.unpack_from("<I", data, at)
        value, at = _read_value(data, at + 4, kind)
        name = key.decode()
        yield name, value.decode() if name == "general.architecture" and isinstance(value, bytes) else value


def _read_value(data: mmap.mmap, at: int, kind: int) -> tuple[_Value, int]:
    if kind == _STRING:
        return _read_string(data, at)
    if kind == _ARRAY:
        return _read_array(data, at)
    form = _SCALARS[kind]
    return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)


def _read_array(data: mmap.mmap, at: int) -> tuple[list[bytes] | None, int]:
    """An array of strings; one of numbers is skipped, since nobody here asks for any."""
    kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if kind != _STRING:
        return None, at + count * struct.calcsize(_SCALARS[kind])
    strings: list[bytes] = []
    for _ in range(count):
        string, at = _read_string(data, at)
        strings.append(string)
    return strings, at


def _read_string(data: mmap.mmap, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from("<Q", data, at)
    if at + 8 + length > len(data):
        raise struct.error("a string ends beyond the file")
    return data[at + 8 : at + 8 + length], at + 8 + length

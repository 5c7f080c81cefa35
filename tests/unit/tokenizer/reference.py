"""Tokenizers a second time, in plain Python: slow, short, and from the algorithms' own descriptions.

What they share with `tokenizers` and fastokens is the data of the model, nothing else.
"""

import heapq
import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import regex

from tests.real_tokenizers import Piece

Encode = Callable[[str], list[int]]


def byte_level(tokenizer_json: str, *, by_rank: bool = False) -> Encode:
    """Byte-level BPE: split by the model's patterns, then merge bytes. Bytes that the model does not know are left out.

    `by_rank` merges as tiktoken does: the pair that makes the token of the lowest id, whatever the list of merges says.
    """
    document = json.loads(tokenizer_json)
    vocabulary: dict[str, int] = document["model"]["vocab"]
    merges = {} if by_rank else _ranks(document["model"]["merges"])
    spell = _spelling()
    split = _splitter(document["pre_tokenizer"]["pretokenizers"])
    normalise = _nfc if (document["normalizer"] or {}).get("type") == "NFC" else str

    def rank(left: str, right: str) -> int | None:
        return vocabulary.get(left + right) if by_rank else merges.get((left, right))

    def encode(text: str) -> list[int]:
        words = split(normalise(text))
        spelled = ("".join(spell[byte] for byte in word.encode()) for word in words)
        known = ([character for character in word if character in vocabulary] for word in spelled)
        tokens = (token for word in known for token in _merged(word, rank))
        return [vocabulary[token] for token in tokens]

    return _with_added(document["added_tokens"], encode)


def sentencepiece(pieces: list[Piece]) -> Encode:
    """BPE as sentencepiece has it: no words, the best score first; what is no piece falls back on bytes.

    Its control tokens are never found in text."""
    vocabulary = {piece.text: number for number, piece in enumerate(pieces)}
    mergeable = {piece.text: -piece.score for piece in pieces if piece.kind == 1}

    def rank(left: str, right: str) -> float | None:
        return mergeable.get(left + right)

    def encode(text: str) -> list[int]:
        found: list[int] = []
        for token in _merged(list("▁" + text.replace(" ", "▁")), rank):
            if token in mergeable:
                found.append(vocabulary[token])
            else:
                found += [vocabulary[f"<0x{byte:02X}>"] for byte in token.encode()]
        return found

    return encode


def word_piece(tokenizer_json: str) -> Encode:
    """BERT's basic tokenization (uncased), then the longest pieces from the left."""
    document = json.loads(tokenizer_json)
    vocabulary: dict[str, int] = document["model"]["vocab"]

    def encode(text: str) -> list[int]:
        return [token_id for word in _bert_words(text) for token_id in _longest_pieces(word, vocabulary)]

    return _with_added(document["added_tokens"], encode)


def _with_added(added: Iterable[Mapping[str, Any]], encode: Encode) -> Encode:
    """Added tokens come out of the text first; the longest of those that begin at a place."""
    ids = {token["content"]: token["id"] for token in added}
    pattern = regex.compile("|".join(regex.escape(token) for token in sorted(ids, key=len, reverse=True)))

    def encode_all(text: str) -> list[int]:
        found: list[int] = []
        at = 0
        for match in pattern.finditer(text):
            found += encode(text[at : match.start()])
            found.append(ids[match.group()])
            at = match.end()
        return found + encode(text[at:])

    return encode_all


def _ranks(merges: list[Any]) -> dict[tuple[str, str], int]:
    pairs = (tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in merges)
    return {(left, right): rank for rank, (left, right) in enumerate(pairs)}


def _merged(symbols: list[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Merge the best pair, of equals the leftmost, until there is none."""
    left, right = list(range(-1, len(symbols) - 1)), list(range(1, len(symbols) + 1))
    heap: list[tuple[float, int, str, str]] = []

    def push(at: int) -> None:
        if at >= 0 and right[at] < len(symbols):
            found = rank(symbols[at], symbols[right[at]])
            if found is not None:
                heapq.heappush(heap, (found, at, symbols[at], symbols[right[at]]))

    for at in range(len(symbols) - 1):
        push(at)
    while heap:
        _, at, first, second = heapq.heappop(heap)
        behind = right[at]
        if symbols[at] != first or behind >= len(symbols) or symbols[behind] != second:
            continue  # one of them has been merged meanwhile
        symbols[at], symbols[behind] = first + second, ""
        right[at] = right[behind]
        if right[at] < len(symbols):
            left[right[at]] = at
        push(at)
        push(left[at])
    return [symbol for symbol in symbols if symbol]


def _splitter(steps: list[Mapping[str, Any]]) -> Callable[[str], list[str]]:
    patterns = [regex.compile(step["pattern"]["Regex"]) for step in steps if step["type"] == "Split"]

    def split(text: str) -> list[str]:
        words = [text]
        for pattern in patterns:
            words = [part for word in words for part in _isolated(pattern, word)]
        return words

    return split


def _isolated(pattern: "regex.Pattern[str]", word: str) -> list[str]:
    parts: list[str] = []
    at = 0
    for match in pattern.finditer(word):
        parts += (word[at : match.start()], match.group())
        at = match.end()
    return [part for part in (*parts, word[at:]) if part]


def _spelling() -> list[str]:
    """How byte-level vocabularies write bytes."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(0x100)]


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _bert_words(text: str) -> list[str]:
    spaced: list[str] = []
    for character in text:
        code = ord(character)
        kind = unicodedata.category(character)
        if character in "\t\n\r" or kind == "Zs":
            spaced.append(" ")
        elif code in (0, 0xFFFD) or kind.startswith("C"):
            continue
        else:
            spaced.append(f" {character} " if _is_cjk(code) else character)
    folded = unicodedata.normalize("NFD", "".join(spaced))
    folded = "".join(character for character in folded if unicodedata.category(character) != "Mn").lower()
    return "".join(f" {character} " if _is_punctuation(character) else character for character in folded).split()


def _is_cjk(code: int) -> bool:
    ranges = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F))
    more = ((0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
    return any(low <= code <= high for low, high in ranges + more)


def _is_punctuation(character: str) -> bool:
    is_ascii_mark = character.isascii() and character.isprintable() and not character.isalnum() and character != " "
    return is_ascii_mark or unicodedata.category(character).startswith("P")


def _longest_pieces(word: str, vocabulary: Mapping[str, int]) -> list[int]:
    unknown = [vocabulary["[UNK]"]]
    if len(word) > 100:
        return unknown
    found: list[int] = []
    start = 0
    while start < len(word):
        mark = "##" if start else ""
        end = next((end for end in range(len(word), start, -1) if mark + word[start:end] in vocabulary), None)
        if end is None:
            return unknown
        found.append(vocabulary[mark + word[start:end]])
        start = end
    return found

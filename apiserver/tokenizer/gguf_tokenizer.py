"""A GGUF file's metadata, turned into a `tokenizer.json`: the byte-level BPE families, which is what chat models use.

Runs only in the converting child: it imports gguf and with it numpy. (transformers reads GGUF too, but needs torch.)
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from apiserver.tokenizer.gguf_pretokenizers import PRE_TOKENIZERS, PreTokenizer

_REMEDY = "pass --tokenizer with the model's own tokenizer directory"

# gguf.TokenType, as llama.cpp reads it: control tokens are special, user-defined ones are matched whole and shown.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

# A file names one end token and chat models end turns with another, so llama.cpp knows them by their text (its
# issue 9606); so do we, for control tokens.
_END_TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "[EOT]",
        "[EOS]",
        "</s>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",
    }
)
_HARMONY_ENDS = frozenset({"<|return|>", "<|call|>", "<|calls|>", "<|flush|>"})  # there `<|end|>` ends a channel only


class GGUFError(ValueError):
    """No tokenizer can be made of this file; the message is one line."""


@dataclass(frozen=True)
class Converted:
    """What a tokenizer directory holds, out of one GGUF file."""

    tokenizer_json: str
    chat_template: str | None
    special_tokens: dict[str, str]
    eos_token_ids: tuple[int, ...]
    model_max_length: int | None
    vocab_size: int
    add_bos: bool


def convert_gguf(path: Path) -> Converted:
    """Read the tokenizer of `path`. Raises GGUFError, also when the file is no GGUF or its tokenizer is not BPE."""
    metadata = _Metadata(path)
    pre = _pre_tokenizer(metadata)
    tokens: list[str] = metadata.required("tokenizer.ggml.tokens")
    special = metadata.special_tokens(tokens)
    types: list[int] = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    add_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", pre.add_bos)) and "bos_token" in special
    add_eos = bool(metadata.get("tokenizer.ggml.add_eos_token", False)) and "eos_token" in special
    document = _document(
        pre=pre,
        tokens=tokens,
        added=list(_added_tokens(tokens, types)),
        merges=[_pair(merge) for merge in metadata.required("tokenizer.ggml.merges")],
        before=[special["bos_token"]] if add_bos else [],
        after=[special["eos_token"]] if add_eos else [],
    )
    context_length = metadata.get(f"{metadata.get('general.architecture')}.context_length")
    return Converted(
        tokenizer_json=json.dumps(document, ensure_ascii=False),
        chat_template=metadata.get("tokenizer.chat_template"),
        special_tokens=special,
        eos_token_ids=_eos_token_ids(metadata, tokens, types),
        model_max_length=None if context_length is None else int(context_length),
        vocab_size=len(tokens),
        add_bos=add_bos,
    )


class _Metadata:
    """The key-value half of a GGUF file."""

    def __init__(self, path: Path) -> None:
        try:
            self._fields = gguf.GGUFReader(path).fields
        except (OSError, ValueError, IndexError, KeyError) as error:  # the reader's own checks end at the magic number
            raise GGUFError(f"{path} cannot be read as a GGUF file: {error}") from error
        self._path = path

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key` in plain Python types."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def required(self, key: str) -> Any:
        """The value of `key`, without which there is no tokenizer."""
        value = self.get(key)
        if value is None:
            raise GGUFError(f"{self._path} has no {key}; {_REMEDY}")
        return value

    def special_tokens(self, tokens: Sequence[str]) -> dict[str, str]:
        """The named tokens as templates know them, by text."""
        names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
        ids = {name: self.get(f"tokenizer.ggml.{stem}_token_id") for name, stem in names.items()}
        return {name: tokens[int(token_id)] for name, token_id in ids.items() if token_id is not None}


def _pre_tokenizer(metadata: _Metadata) -> PreTokenizer:
    model = metadata.required("tokenizer.ggml.model")
    if model != "gpt2":
        raise GGUFError(f"a GGUF tokenizer of model {model!r} cannot be converted, only byte-level BPE; {_REMEDY}")
    name = metadata.required("tokenizer.ggml.pre")
    if name not in PRE_TOKENIZERS:
        raise GGUFError(f"the GGUF pre-tokenizer {name!r} is not known; {_REMEDY}")
    return PRE_TOKENIZERS[name]


def _added_tokens(tokens: Sequence[str], types: Sequence[int]) -> Iterator[dict[str, object]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for token_id, (content, token_type) in enumerate(zip(tokens, types, strict=True)):
        if token_type in (_UNKNOWN, _CONTROL, _USER_DEFINED):
            yield {"id": token_id, "content": content, **flags, "special": token_type != _USER_DEFINED}


def _pair(merge: str) -> list[str]:
    # From 1 on, as llama.cpp does: a left half that is itself a space is possible, an empty one is not.
    space = merge.find(" ", 1)
    return [merge[:space], merge[space + 1 :]]


def _eos_token_ids(metadata: _Metadata, tokens: Sequence[str], types: Sequence[int]) -> tuple[int, ...]:
    """The file's own end tokens first, then the control tokens that are known to end a turn."""
    named = [metadata.get(f"tokenizer.ggml.{stem}_token_id") for stem in ("eos", "eot", "eom")]
    known = [i for i, token in enumerate(tokens) if token in _END_TEXTS and types[i] in (_CONTROL, _USER_DEFINED)]
    if not _HARMONY_ENDS.isdisjoint(tokens[i] for i in known):
        known = [i for i in known if tokens[i] != "<|end|>"]
    return tuple(dict.fromkeys([int(i) for i in named if i is not None] + known))


def _document(
    *,
    pre: PreTokenizer,
    tokens: Sequence[str],
    added: Sequence[dict[str, object]],
    merges: Sequence[list[str]],
    before: Sequence[str],
    after: Sequence[str],
) -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in pre.patterns
    ]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if pre.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, byte_level]},
        "post_processor": _surround(before, after, vocab) if before or after else byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre.ignore_merges,
            "vocab": vocab,
            "merges": merges,
        },
    }


def _surround(before: Sequence[str], after: Sequence[str], vocab: dict[str, int]) -> dict[str, object]:
    """The post-processor that writes the tokens `before` and `after` around a prompt."""

    def specials(tokens: Sequence[str]) -> list[dict[str, object]]:
        return [{"SpecialToken": {"id": token, "type_id": 0}} for token in tokens]

    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    single = [*specials(before), first, *specials(after)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *specials(before), second, *specials(after)],
        "special_tokens": {
            token: {"id": token, "ids": [vocab[token]], "tokens": [token]} for token in dict.fromkeys([*before, *after])
        },
    }

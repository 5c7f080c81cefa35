"""The encoders that `bench_tokenize` compares, each as one function: text → ids, special tokens included."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Encode = Callable[[str], list[int]]

BACKENDS = ("encode", "encode_batch_fast", "fastokens")
_WARM_TEXT = "The first call starts threads and fills caches; it is no example of a call. " * 20


@dataclass(frozen=True, slots=True)
class Reference:
    """What the others are compared with, and how prompts are cut to a length."""

    ids: Encode
    offsets: Callable[[str], Sequence[tuple[int, int]]]


def load_reference(path: Path) -> Reference:
    """`tokenizers` with an object of its own, so that the timed one has not seen the prompts."""
    tokenizer = _tokenizer(path)
    return Reference(
        ids=lambda text: tokenizer.encode(text).ids,
        offsets=lambda text: tokenizer.encode(text, add_special_tokens=False).offsets,
    )


def load(path: Path, names: Sequence[str]) -> tuple[dict[str, Encode], list[str]]:
    """The backends that can load this file, warmed, each with an object of its own; and why others are missing."""
    backends: dict[str, Encode] = {}
    notes: list[str] = []
    for name in names:
        try:
            encode = _MAKERS[name](path)
        except ImportError:
            notes.append(f"{name} is not installed: not measured")
        except Exception as error:  # whatever a backend says of a tokenizer that it cannot do
            first = (str(error).splitlines() or [type(error).__name__])[0]
            notes.append(f"{name} cannot load it ({first[:150]}): not measured")
        else:
            encode(_WARM_TEXT)
            backends[name] = encode
    return backends, notes


def _tokenizer(path: Path) -> Any:
    # Said before the first call: one call is one thread's work here, as it is in an API server.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _make_encode(path: Path) -> Encode:
    tokenizer = _tokenizer(path)
    return lambda text: tokenizer.encode(text).ids


def _make_encode_batch_fast(path: Path) -> Encode:
    tokenizer = _tokenizer(path)
    return lambda text: tokenizer.encode_batch_fast([text])[0].ids


def _make_fastokens(path: Path) -> Encode:
    from fastokens import Tokenizer

    tokenizer = Tokenizer.from_json_str(path.read_text(encoding="utf-8"))
    # Its default leaves the special tokens out, tokenizers' puts them in.
    return lambda text: tokenizer.encode(text, add_special_tokens=True).ids


_MAKERS: dict[str, Callable[[Path], Encode]] = {
    "encode": _make_encode,
    "encode_batch_fast": _make_encode_batch_fast,
    "fastokens": _make_fastokens,
}

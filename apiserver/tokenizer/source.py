"""Where a tokenizer comes from: any source, brought to a `tokenizer.json` and the few facts beside it.

Standard library only, because the supervisor calls it and the supervisor forks: whatever needs transformers, gguf or
numpy (the first of them starts a thread) runs in a short-lived child, `apiserver.tokenizer.convert`, once per source.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

CONVERTER_VERSION = 1  # raise it when a conversion comes out differently: old cache entries are then not found

TOKENIZER_JSON = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
META = "tokenizer_meta.json"

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_NO_LIMIT = 1 << 40  # transformers writes 1e30 for "no limit"
_CHILD_SECONDS = 600


class TokenizerError(Exception):
    """No tokenizer can be had from this source; the message is one line for the person at the terminal."""


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer that `tokenizers` can load, and what a chat server must know beside it."""

    tokenizer_json: Path
    chat_template: str | None
    special_tokens: dict[str, str]  # bos_token, eos_token, … by name: chat templates see them as variables
    eos_token_ids: tuple[int, ...]
    model_max_length: int | None


def prepare(source: str, cache_root: Path) -> TokenizerFiles:
    """Bring `source` (a model directory, a GGUF file or a hub id) to files, converting it at most once.

    A directory with a `tokenizer.json` is read where it lies. Everything else is converted into a directory below
    `cache_root`, whose name says which version of the source it was made of.
    """
    path = Path(source)
    if (path / TOKENIZER_JSON).is_file():
        return read_directory(path)
    if not source or (not path.exists() and not _HUB_ID.fullmatch(source)):
        raise TokenizerError(f"tokenizer {source!r} is neither a path that exists nor the name of a model on the hub")
    converted = cache_root / _cache_key(source)
    if not (converted / META).is_file():
        _convert_into(converted, source)
    return _read_converted(converted)


def read_directory(directory: Path) -> TokenizerFiles:
    """Read a Hugging Face model directory that has a `tokenizer.json`, with nothing but json."""
    config = _read_object(directory / "tokenizer_config.json")
    special_tokens = _special_tokens(_read_object(directory / "special_tokens_map.json")) | _special_tokens(config)
    tokenizer_json = directory / TOKENIZER_JSON
    own = _added_token_ids(tokenizer_json).get(special_tokens.get("eos_token", ""))
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        chat_template=_chat_template(directory, config),
        special_tokens=special_tokens,
        eos_token_ids=eos_token_ids(directory, own=own),
        model_max_length=model_max_length(directory, own=config.get("model_max_length")),
    )


def eos_token_ids(directory: Path, *, own: int | None) -> tuple[int, ...]:
    """Every id that ends a generation: the tokenizer's `own`, then the generation config's, else the model's."""
    ids: list[int] = [] if own is None else [own]
    for name in ("generation_config.json", "config.json"):
        match _read_object(directory / name).get("eos_token_id"):
            case int(token_id):
                ids.append(token_id)
            case [*several]:
                ids += cast("list[int]", several)
            case _:
                continue
        break
    return tuple(dict.fromkeys(ids))


def model_max_length(directory: Path, *, own: object) -> int | None:
    """The least of the lengths that the tokenizer (its `own`) and the model set, if they set any."""
    model = _read_object(directory / "config.json")
    text_model = _object(model.get("text_config"))
    limits = (own, model.get("max_position_embeddings"), text_model.get("max_position_embeddings"))
    return min(
        (int(limit) for limit in limits if isinstance(limit, int | float) and 0 < limit < _NO_LIMIT), default=None
    )


def join_templates(templates: Mapping[str, str]) -> str | None:
    """One template out of named ones: with tools the one for tools, as transformers chooses, otherwise the default."""
    default, with_tools = templates.get("default"), templates.get("tool_use")
    if default is None or with_tools is None:
        return default or with_tools
    # The empty outputs keep the blocks from trimming the templates' own first and last white space.
    first, second = (template.removesuffix("\n") for template in (with_tools, default))
    empty = '{{ "" }}'
    return f"{{% if tools is not none %}}{empty}{first}{empty}{{% else %}}{empty}{second}{empty}{{% endif %}}"


def _cache_key(source: str) -> str:
    path = Path(source)
    name = str(path.resolve()) if path.exists() else source
    versions: list[str] = []
    if path.is_file():
        versions = [_version_of(path)]
    elif path.is_dir():
        versions = sorted(_version_of(entry) for entry in path.iterdir() if entry.is_file())
    digest = hashlib.sha256("\n".join([str(CONVERTER_VERSION), name, *versions]).encode()).hexdigest()
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '-', Path(name).name)}-{digest[:16]}"


def _version_of(file: Path) -> str:
    status = file.stat()
    return f"{file.name} {status.st_size} {status.st_mtime_ns}"


def _convert_into(directory: Path, source: str) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".converting-") as scratch:
        made = Path(scratch) / "made"
        _run_child(source, made)
        try:
            os.rename(made, directory)  # whoever comes second, at the same time, finds it done
        except OSError:
            if not (directory / META).is_file():
                shutil.rmtree(directory)
                os.rename(made, directory)


def _run_child(source: str, directory: Path) -> None:
    command = [sys.executable, "-m", "apiserver.tokenizer.convert", source, str(directory)]
    try:
        child = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,  # no library may ask the terminal whether to run a model's code
            capture_output=True,
            text=True,
            timeout=_CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TokenizerError(f"tokenizer {source!r}: no result after {_CHILD_SECONDS} seconds") from error
    if child.returncode != 0:
        # The child's last line is its verdict, whether it wrote it or a traceback did.
        lines = child.stderr.strip().splitlines() or [f"the converter ended with status {child.returncode}"]
        raise TokenizerError(f"tokenizer {source!r}: {lines[-1]}")


def _read_converted(directory: Path) -> TokenizerFiles:
    meta = _read_object(directory / META)
    template = directory / CHAT_TEMPLATE
    return TokenizerFiles(
        tokenizer_json=directory / TOKENIZER_JSON,
        chat_template=_read_text(template) if template.is_file() else None,
        special_tokens=meta["special_tokens"],
        eos_token_ids=tuple(meta["eos_token_ids"]),
        model_max_length=meta["model_max_length"],
    )


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {name: config.get(name) for name in _SPECIAL_TOKENS}
    texts = {name: _object(token).get("content", token) for name, token in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _chat_template(directory: Path, config: Mapping[str, Any]) -> str | None:
    """A file of its own wins over the tokenizer's configuration, as in transformers."""
    named: dict[str, str] = {}
    match config.get("chat_template"):
        case str(template):
            named["default"] = template
        case [*entries]:
            named |= {entry["name"]: entry["template"] for entry in cast("list[dict[str, str]]", entries)}
        case _:
            pass
    files = [*sorted((directory / "additional_chat_templates").glob("*.jinja")), directory / CHAT_TEMPLATE]
    for file in files:
        if file.is_file():
            named["default" if file.name == CHAT_TEMPLATE else file.stem] = _read_text(file)
    return join_templates(named)


def _added_token_ids(tokenizer_json: Path) -> dict[str, int]:
    """The ids of the added tokens alone: decoding the whole vocabulary to find one id takes half a second."""
    text = _read_text(tokenizer_json)
    key = text.find('"added_tokens"')
    if key < 0:
        return {}
    try:
        tokens: Iterable[Mapping[str, Any]] = json.JSONDecoder().raw_decode(text, text.index("[", key))[0]
        return {token["content"]: token["id"] for token in tokens}
    except (ValueError, KeyError, TypeError) as error:
        raise TokenizerError(f"{tokenizer_json} is not a tokenizer.json: {error!r}") from error


def _read_object(file: Path) -> dict[str, Any]:
    """The JSON object in `file`; nothing, if there is no such file."""
    if not file.is_file():
        return {}
    try:
        return _object(json.loads(_read_text(file)))
    except ValueError as error:
        raise TokenizerError(f"{file} is not JSON: {error}") from error


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{file} cannot be read: {error}") from error


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}

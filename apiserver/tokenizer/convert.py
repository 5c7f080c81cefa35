"""The converting child: `python -m apiserver.tokenizer.convert SOURCE DIRECTORY`.

Whatever it takes to make a `tokenizer.json` (transformers, gguf, the network) is imported here and dies with the
process. A failure is one line on stderr and exit status 1.
"""

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from apiserver.tokenizer import source as tokenizer_source

# What makes a tokenizer, on the hub: never the weights.
_HUB_FILES = ["*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt", "additional_chat_templates/*"]
_HUB_SECONDS = 5
_REMEDY = "pass --tokenizer with a directory that has a tokenizer.json"


def convert(source: str, directory: Path) -> None:
    """Write `source`'s tokenizer.json, chat template and facts into `directory`. Raises ValueError, in one line."""
    path = Path(source)
    if path.is_file():
        _convert_gguf(path, directory)
    elif path.is_dir():
        _convert_directory(path, directory)
    else:
        _convert_directory(_download(source), directory)


def main() -> int:
    """Convert what the command line names."""
    arguments = sys.argv[1:]
    if len(arguments) != 2:
        return _fail("usage: python -m apiserver.tokenizer.convert SOURCE DIRECTORY")
    try:
        convert(arguments[0], Path(arguments[1]))
    except (ValueError, tokenizer_source.TokenizerError) as error:
        return _fail(" ".join(str(error).split()))
    return 0


def _fail(line: str) -> int:
    sys.stderr.write(line + "\n")
    return 1


def _convert_gguf(path: Path, directory: Path) -> None:
    from apiserver.tokenizer.gguf_tokenizer import convert_gguf

    converted = convert_gguf(path)
    _write(
        directory,
        tokenizer_json=converted.tokenizer_json,
        chat_template=converted.chat_template,
        special_tokens=converted.special_tokens,
        eos_token_ids=converted.eos_token_ids,
        model_max_length=converted.model_max_length,
    )


def _convert_directory(model: Path, directory: Path) -> None:
    if (model / tokenizer_source.TOKENIZER_JSON).is_file():
        # The file as it is. AutoTokenizer would rebuild the pipeline from the class's name, and Llama's comes out
        # different: 418 of 2,000 strings, all with runs of spaces.
        files = tokenizer_source.read_directory(model)
        _write(
            directory,
            tokenizer_json=files.tokenizer_json.read_text(encoding="utf-8"),
            chat_template=files.chat_template,
            special_tokens=files.special_tokens,
            eos_token_ids=files.eos_token_ids,
            model_max_length=files.model_max_length,
        )
        return
    _convert_with_transformers(model, directory)


def _convert_with_transformers(model: Path, directory: Path) -> None:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    transformers: Any = importlib.import_module("transformers")  # its types are of no help
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # any of its many converters may fail, each in its own way
        absent = [name for name in ("sentencepiece", "tiktoken") if importlib.util.find_spec(name) is None]
        hint = f" ({' and '.join(absent)} not installed)" if absent else ""
        raise ValueError(f"transformers cannot load a tokenizer from {model}{hint}: {error}; {_REMEDY}") from error
    if not tokenizer.is_fast:
        raise ValueError(f"{type(tokenizer).__name__} has no form as a tokenizer.json; {_REMEDY}")
    template = tokenizer.chat_template
    _write(
        directory,
        tokenizer_json=tokenizer.backend_tokenizer.to_str(),
        chat_template=template if isinstance(template, str) else tokenizer_source.join_templates(template or {}),
        special_tokens=dict(tokenizer.special_tokens_map),
        eos_token_ids=tokenizer_source.eos_token_ids(model, own=tokenizer.eos_token_id),
        model_max_length=tokenizer_source.model_max_length(model, own=tokenizer.model_max_length),
    )


def _download(name: str) -> Path:
    """Fetch a model's tokenizer files from the hub, or find them in its cache."""
    for variable, value in {
        "HF_HUB_ETAG_TIMEOUT": str(_HUB_SECONDS),
        "HF_HUB_DOWNLOAD_TIMEOUT": str(_HUB_SECONDS),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }.items():
        os.environ.setdefault(variable, value)
    hub: Any = importlib.import_module("huggingface_hub")
    unreachable: Exception | None = None
    try:
        hub.HfApi().model_info(name, timeout=_HUB_SECONDS)  # snapshot_download asks the same without a time limit
    except Exception as error:  # its own errors, the HTTP client's and the system's all mean the same here
        unreachable = error
    try:
        return Path(hub.snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=unreachable is not None))
    except Exception as error:
        why = unreachable or error
        cause = (str(why).strip().splitlines() or [type(why).__name__])[0]
        if getattr(why, "response", None) is None:
            raise ValueError(f"no such path, and the hub gives no model: it cannot be reached: {cause}") from error
        private = "" if os.environ.get("HF_TOKEN") else " (a private or gated one needs HF_TOKEN)"
        raise ValueError(f"no such path, and the hub gives no model of that name{private}: {cause}") from error


def _write(
    directory: Path,
    *,
    tokenizer_json: str,
    chat_template: str | None,
    special_tokens: Mapping[str, str],
    eos_token_ids: tuple[int, ...],
    model_max_length: int | None,
) -> None:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(tokenizer_json)
    except Exception as error:  # tokenizers raises nothing more precise
        raise ValueError(f"the tokenizer does not load: {error}; {_REMEDY}") from error
    directory.mkdir(parents=True, exist_ok=True)
    (directory / tokenizer_source.TOKENIZER_JSON).write_text(tokenizer_json, encoding="utf-8")
    if chat_template is not None:
        (directory / tokenizer_source.CHAT_TEMPLATE).write_text(chat_template, encoding="utf-8")
    facts = {
        "special_tokens": dict(special_tokens),
        "eos_token_ids": list(eos_token_ids),
        "model_max_length": model_max_length,
        "vocab_size": tokenizer.get_vocab_size(),
        "add_bos": _adds_bos(tokenizer, special_tokens.get("bos_token")),
    }
    (directory / tokenizer_source.META).write_text(json.dumps(facts, ensure_ascii=False), encoding="utf-8")


def _adds_bos(tokenizer: Any, bos_token: str | None) -> bool:
    ids = cast("list[int]", tokenizer.encode("a").ids)
    return bos_token is not None and ids[:1] == [tokenizer.token_to_id(bos_token)]


if __name__ == "__main__":
    sys.exit(main())

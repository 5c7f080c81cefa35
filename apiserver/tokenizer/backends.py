"""Which encoder to use: `--tokenizer-backend auto|fastokens|hf`, and why."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from apiserver.config import BackendName
from apiserver.tokenizer import Encoder
from apiserver.tokenizer.fast import FASTOKENS_VERSION, FastEncoder
from apiserver.tokenizer.hf import HfTokenizer
from apiserver.tokenizer.probe import PROBE_VERSION, probe
from apiserver.tokenizer.source import TokenizerError


@dataclass(frozen=True)
class TokenizerChoice:
    """A tokenizer.json, ready to make backends of; `reason` says why this encoder and not the other."""

    tokenizer_json: str
    encoder_name: str
    reason: str

    def make(self) -> tuple[HfTokenizer, Encoder]:
        """A tokenizer and an encoder that share nothing with any other. Load before the fork: it takes a second."""
        tokenizer = HfTokenizer(self.tokenizer_json)
        return tokenizer, FastEncoder(self.tokenizer_json) if self.encoder_name == "fastokens" else tokenizer


def choose(file: Path, wanted: BackendName, verdicts: Path) -> TokenizerChoice:
    """Of what is asked for and what agrees with the reference. `verdicts` is a directory to remember agreement in.

    Raises TokenizerError when fastokens is asked for and may not be used.
    """
    tokenizer_json = file.read_text(encoding="utf-8")
    if wanted == "hf":
        return TokenizerChoice(tokenizer_json, "hf", "asked for")
    disagreement = _remembered(file, verdicts, lambda: probe(file))
    if disagreement is None:
        return TokenizerChoice(tokenizer_json, "fastokens", "its ids agree with tokenizers'")
    if wanted == "fastokens":
        raise TokenizerError(f"--tokenizer-backend fastokens: {disagreement}")
    return TokenizerChoice(tokenizer_json, "hf", disagreement)


def _remembered(file: Path, verdicts: Path, ask: Callable[[], str | None]) -> str | None:
    """The probe's answer for this very file and these versions, asked once: loading both takes seconds."""
    status = file.stat()
    key = f"{file.resolve()} {status.st_size} {status.st_mtime_ns} {FASTOKENS_VERSION} {PROBE_VERSION}"
    memory = verdicts / "fastokens-verdicts.json"
    known = _read(memory)
    if key not in known:
        known[key] = ask()
        verdicts.mkdir(parents=True, exist_ok=True)
        scratch = memory.with_suffix(".new")
        scratch.write_text(json.dumps(known), encoding="utf-8")
        scratch.replace(memory)
    return known[key]


def _read(memory: Path) -> dict[str, str | None]:
    try:
        loaded: Any = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast(dict[str, str | None], loaded) if isinstance(loaded, dict) else {}

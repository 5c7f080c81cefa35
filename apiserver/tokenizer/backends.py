"""Which encoder to use: `--tokenizer-backend auto|fastokens|hf`, and why."""

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from apiserver.config import BackendName
from apiserver.tokenizer import Encoder
from apiserver.tokenizer.fast import FASTOKENS_VERSION, FastEncoder
from apiserver.tokenizer.hf import HfTokenizer
from apiserver.tokenizer.probe import PROBE_VERSION, NoVerdict, probe
from apiserver.tokenizer.source import TokenizerError
from apiserver.tokenizer.words import WordEncoder, is_word_by_word

_VERSIONS = f"fastokens {FASTOKENS_VERSION} tokenizers {version('tokenizers')} probe {PROBE_VERSION}"


@dataclass(frozen=True)
class TokenizerChoice:
    """A tokenizer.json, ready to make backends of; `reason` says why this encoder and not the other."""

    tokenizer_json: str
    encoder_name: str
    reason: str

    def make(self) -> tuple[HfTokenizer, Encoder]:
        """A tokenizer and an encoder that share nothing with any other. Load before the fork: it takes a second."""
        tokenizer = HfTokenizer(self.tokenizer_json)
        match self.encoder_name:
            case "fastokens":
                return tokenizer, FastEncoder(self.tokenizer_json)
            case "words":
                return tokenizer, WordEncoder(self.tokenizer_json, tokenizer)
            case _:
                return tokenizer, tokenizer


def choose(file: Path, wanted: BackendName, verdicts: Path) -> TokenizerChoice:
    """Of what is asked for and what agrees with the reference. `verdicts` is a directory to remember agreement in.

    Raises TokenizerError when fastokens is asked for and may not be used.
    """
    tokenizer_json = file.read_text(encoding="utf-8")
    if wanted == "hf":
        return TokenizerChoice(tokenizer_json, "hf", "asked for")
    try:
        disagreement = _remembered(tokenizer_json, verdicts, lambda: probe(file))
    except NoVerdict as error:
        disagreement = str(error)
    if disagreement is None:
        return TokenizerChoice(tokenizer_json, "fastokens", "its ids agree with tokenizers'")
    if wanted == "fastokens":
        raise TokenizerError(f"--tokenizer-backend fastokens: {disagreement}")
    if is_word_by_word(tokenizer_json):
        return TokenizerChoice(tokenizer_json, "words", f"words do not depend on each other; {disagreement}")
    return TokenizerChoice(tokenizer_json, "hf", disagreement)


def _remembered(tokenizer_json: str, verdicts: Path, ask: Callable[[], str | None]) -> str | None:
    """The probe's answer for this very text and these versions, asked once: loading both takes seconds."""
    key = f"{hashlib.sha256(tokenizer_json.encode()).hexdigest()} {_VERSIONS}"
    memory = verdicts / "fastokens-verdicts.json"
    known = _read(memory)
    if key not in known:
        known[key] = ask()
        with contextlib.suppress(OSError):  # a cache that cannot be written costs seconds, not the start
            _write(memory, known)
    return known[key]


def _write(memory: Path, known: dict[str, str | None]) -> None:
    memory.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own: two pools may start at once.
    with tempfile.NamedTemporaryFile("w", dir=memory.parent, suffix=".new", encoding="utf-8", delete=False) as scratch:
        scratch.write(json.dumps(known))
    Path(scratch.name).replace(memory)


def _read(memory: Path) -> dict[str, str | None]:
    try:
        loaded: Any = json.loads(memory.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast(dict[str, str | None], loaded) if isinstance(loaded, dict) else {}

"""Which tokenizer a benchmark means, by a short name or by its directory."""

from pathlib import Path

from benchlib.pool import ROOT
from benchlib.qwen import qwen3_directory

TOKENIZER_JSON = "tokenizer.json"


def find_tokenizer(name: str) -> Path | None:
    """The directory of `byte` (None: the pool's own default on the simulated engine), `minilm`, `qwen3` or a path.

    Raises CannotFetch if Qwen3's has to be made and its package cannot be had, ValueError for anything else.
    """
    match name:
        case "byte":
            return None
        case "minilm":
            return ROOT / "apiserver" / "data" / "minilm"
        case "qwen3":
            return qwen3_directory()
    path = Path(name).expanduser()
    directory = path.parent if path.name == TOKENIZER_JSON else path
    if not (directory / TOKENIZER_JSON).is_file():
        raise ValueError(f"no tokenizer {name}: not byte, minilm or qwen3, and there is no {TOKENIZER_JSON} in it")
    return directory

"""The parts of the scripts. They are in no package that is installed: each script finds its own beside it."""

import importlib
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1] / "scripts"


def load_parts(library: str, *names: str) -> list[Any]:
    """Modules of benchlib, chaoslib or fuzzlib."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        return [importlib.import_module(f"{library}.{name}") for name in names]
    finally:
        sys.path.remove(str(SCRIPTS))

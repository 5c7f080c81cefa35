"""The house's own checks: the changelog's version is the package's; large files and functions are listed to look at."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE_LINES, FUNCTION_LINES = 400, 40


def sources() -> Iterator[Path]:
    for room in ("apiserver", "engine_bridge", "scripts", "tests"):
        yield from sorted((ROOT / room).rglob("*.py"))


def large_places() -> Iterator[str]:
    """Places to look for a seam; a listing, not a failure."""
    for path in sources():
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(ROOT)
        lines = text.count("\n")
        if lines > FILE_LINES:
            yield f"{name}: {lines} lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > FUNCTION_LINES:
                    yield f"{name}:{node.lineno}: {node.name} has {length} lines"


def version_of(file: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    return found.group(1) if found else f"none in {file}"


def main() -> int:
    for place in large_places():
        print(f"to look at: {place}")
    versions = {
        "pyproject.toml": version_of("pyproject.toml", r'^version = "(.+)"'),
        "apiserver/__init__.py": version_of("apiserver/__init__.py", r'^__version__ = "(.+)"'),
        "CHANGELOG.md": version_of("CHANGELOG.md", r"^## \[?(\d[^\]\s]*)"),
    }
    if len(set(versions.values())) != 1:
        print(f"the versions differ: {versions}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

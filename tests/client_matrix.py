"""Which client is tried on which API, and with what: the table in docs/conformance.md, made of the tests' own marks.

    python -m tests.client_matrix    writes it there

A test says `@pytest.mark.exercises(client, route, what)`; the marks are read from the sources, so that the table is the
same wherever a client is installed or not.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCUMENT = Path(__file__).parents[1] / "docs" / "conformance.md"
_BEGIN, _END = "<!-- clients: begin -->", "<!-- clients: end -->"


class Mark(NamedTuple):
    """One test's word. `where` is its file."""

    client: str
    route: str
    what: str
    where: str


def marks() -> Iterator[Mark]:
    tests = Path(__file__).parent
    for path in sorted(tests.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.exercises":
                client, route, what = (ast.literal_eval(argument) for argument in node.args)
                yield Mark(client, route, what, path.relative_to(tests.parent).as_posix())


def table() -> str:
    """Markdown: a row for each client and route."""
    rows: dict[tuple[str, str], list[Mark]] = {}
    for mark in marks():
        rows.setdefault((mark.client, mark.route), []).append(mark)
    lines = ["| client | API | exercised | by |", "|---|---|---|---|"]
    for (client, route), found in sorted(rows.items()):
        things = "; ".join(dict.fromkeys(mark.what for mark in found))
        files = ", ".join(f"`{name}`" for name in dict.fromkeys(mark.where for mark in found))
        lines.append(f"| {client} | `{route}` | {things} | {files} |")
    return "\n".join(lines)


def written() -> str:
    """The table as the document has it."""
    _, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(_BEGIN)
    return rest.partition(_END)[0].strip()


def write() -> None:
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    DOCUMENT.write_text(f"{before}{_BEGIN}\n{table()}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write()

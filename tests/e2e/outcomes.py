"""The table of dialects and outcomes that tests/e2e/test_outcomes.py runs, as it stands in docs/conformance.md.

python -m tests.e2e.outcomes    writes it there
"""

from pathlib import Path

from tests.e2e.outcome_dialects import DIALECTS, Dialect

DOCUMENT = Path(__file__).parents[2] / "docs" / "conformance.md"
OUTCOMES = (
    "stop",
    "stop string",
    "length",
    "tool call",
    "reasoning",
    "n = 2",
    "error before the first token",
    "error in mid-stream",
    "client gone",
)
_BEGIN, _END = "<!-- outcomes: begin -->", "<!-- outcomes: end -->"


def table() -> str:
    """Markdown: a row for each dialect, a column for each outcome, and why there is none."""
    reasons = list(dict.fromkeys(reason for dialect in DIALECTS for reason in dialect.none.values()))
    lines = ["| API | " + " | ".join(OUTCOMES) + " |", "|---" * (len(OUTCOMES) + 1) + "|"]
    for dialect in DIALECTS:
        cells = [_cell(dialect, outcome, reasons) for outcome in OUTCOMES]
        lines.append(f"| `{dialect.path}`, {dialect.name.split(', ')[-1]} | " + " | ".join(cells) + " |")
    notes = [f"{number}. none: {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *notes])


def _cell(dialect: Dialect, outcome: str, reasons: list[str]) -> str:
    reason = dialect.none.get(outcome)
    return "whole, stream" if reason is None else f"none ({reasons.index(reason) + 1})"


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

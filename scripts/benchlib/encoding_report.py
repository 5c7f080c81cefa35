"""What `bench_tokenize` shows: microseconds a call, by tokenizer, backend and length."""

from typing import Any

from benchlib.plot import Lines, Panel
from benchlib.report import number, table


def render(document: dict[str, Any]) -> str:
    """The document as a Markdown table."""
    label = f"{document['label']}: " if document["label"] else ""
    rows: list[list[str]] = []
    for result in document["results"]:
        median = result["median"]
        rows.append(
            [
                result["tokenizer"],
                result["backend"],
                f"{result['tokens']}",
                *(number(median[f"{what}_seconds"] * 1e6) for what in ("median", "min", "cpu")),
                f"{result['mismatches']}",
                f"{result['compared']}",
            ]
        )
    header = ["tokenizer", "backend", "tokens", "median us", "min us", "CPU us", "other ids", "of strings"]
    title = f"{label}one call, distinct prompts, median of {document['settings']['repeat']}"
    parts = [title, table(header, rows)]
    if document["notes"]:
        parts.append("\n".join(f"- {note}" for note in document["notes"]))
    return "\n\n".join(parts)


def panels(document: dict[str, Any]) -> list[Panel]:
    """Time over length, a panel a tokenizer, a line a backend."""
    lines: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for result in document["results"]:
        of_tokenizer = lines.setdefault(result["tokenizer"], {})
        points = of_tokenizer.setdefault(result["backend"], [])
        points.append((result["tokens"], result["median"]["median_seconds"] * 1e6))
    return [
        Lines(title=name, x_label="tokens", y_label="us a call", series=series, x_scale="log", y_scale="log")
        for name, series in lines.items()
    ]

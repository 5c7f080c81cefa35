"""What a run found, as tables for a person."""

from typing import Any

from benchlib.flatness import RULE, verdict
from benchlib.plot import Lines, Panel
from benchlib.report import number, table

_ENDS = ("to_success", "to_full_strength")


def render(document: dict[str, Any]) -> str:
    """Requests by dialect and outcome, faults by kind, memory, findings."""
    settings = document["settings"]
    head = f"chaos, seed {settings['seed']}, {settings['minutes']:g} minutes, {', '.join(settings['sites'])}: "
    head += f"{document['requests']} requests, the slowest {document['slowest_seconds']:.1f} s, "
    head += f"{len(document['findings'])} findings"
    return "\n\n".join([head, _outcomes(document), _faults(document), _memory(document), _findings(document)])


def _outcomes(document: dict[str, Any]) -> str:
    outcomes = document["outcomes"]
    columns = sorted({name for row in outcomes.values() for name in row}, key=lambda name: (name != "ok", name))
    rows = [[dialect, *(str(row.get(name, "")) for name in columns)] for dialect, row in outcomes.items()]
    sums = [str(sum(row.get(name, 0) for row in outcomes.values())) for name in columns]
    return table(["requests", *columns], [*rows, ["all", *sums]])


def _faults(document: dict[str, Any]) -> str:
    rows = [
        [kind, str(row["count"]), *(number(row[end][which]) for end in _ENDS for which in ("median", "longest"))]
        for kind, row in document["faults"].items()
    ]
    columns = ["to a success, s: median", "longest", "to full strength, s: median", "longest"]
    return table(["fault", "times", *columns], rows)


def _memory(document: dict[str, Any]) -> str:
    rows = [
        [f"{site}: {kind}", *(number(figures[name] / 1e6) for name in ("early", "late", "most")), verdict(figures)]
        for site, kinds in document["memory"].items()
        for kind, figures in kinds.items()
        if "early" in figures
    ]
    if not rows:
        return "Too short to say whether memory is flat."
    columns = ["MB, median", "second quarter", "last quarter", "most", "flat"]
    return f"{table(columns, rows)}\n\n{RULE}"


def panels(document: dict[str, Any]) -> list[Panel]:
    """Memory over time, a panel a site."""
    return [
        Lines(
            title=f"{site}: memory",
            x_label="seconds",
            y_label="MB",
            series={
                kind: [(each["seconds"], each[kind] / 1e6) for each in readings] for kind in document["memory"][site]
            },
        )
        for site, readings in document["memory_readings"].items()
        for kinds in [document["memory"][site]]
    ]


def _findings(document: dict[str, Any]) -> str:
    if not document["findings"]:
        return "Findings: none."
    settings = document["settings"]
    again = f"scripts/chaos --seed {settings['seed']} --minutes {settings['minutes']:g}"
    again += f" --sites {','.join(settings['sites'])}"
    return "\n".join(
        ["Findings:", *(f"- {finding}" for finding in document["findings"]), f"\nTo see it again: {again}"]
    )

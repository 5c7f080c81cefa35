"""What a run found, as tables for a person."""

from typing import Any

from benchlib.report import number, table


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
        [kind, str(row["count"]), number(row["to_success"]), number(row["to_full_strength"])]
        for kind, row in sorted(document["faults"].items())
    ]
    return table(["fault", "times", "longest to a success, s", "longest to full strength, s"], rows)


def _memory(document: dict[str, Any]) -> str:
    rows = [
        [
            site,
            role,
            *(number(figures[name] / 1e6) for name in ("early", "late", "most")),
            "yes" if figures["is_flat"] else "NO",
        ]
        for site, roles in document["memory"].items()
        for role, figures in roles.items()
        if "early" in figures
    ]
    return table(["memory, MB", "of", "second quarter", "last quarter", "most", "flat"], rows)


def _findings(document: dict[str, Any]) -> str:
    if not document["findings"]:
        return "Findings: none."
    settings = document["settings"]
    again = f"scripts/chaos --seed {settings['seed']} --minutes {settings['minutes']:g}"
    again += f" --sites {','.join(settings['sites'])}"
    return "\n".join(
        ["Findings:", *(f"- {finding}" for finding in document["findings"]), f"\nTo see it again: {again}"]
    )

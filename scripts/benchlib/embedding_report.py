"""What `bench_embed` shows: a row a load, the CPU by process, and throughput against latency."""

from typing import Any

from benchlib.plot import Lines, Panel
from benchlib.report import number, table


def render(document: dict[str, Any]) -> str:
    """The document as Markdown tables."""
    settings, levels = document["settings"], document["levels"]
    label = f"{document['label']}: " if document["label"] else ""
    parts = [
        f"{label}embeddings of {document['model']}, {settings['tokens']} tokens a text, "
        f"{settings['encoding_format']}, median of {settings['repeat']}",
        _load_table(levels),
    ]
    if document["offline"] is not None:
        parts.append(_offline_line(document["offline"]["median"], levels))
    if any(level["median"]["server"] for level in levels):
        parts.append(_cpu_table(levels))
    notes = [f"- {_name(level)}: {note}" for level in levels for note in level["notes"]]
    notes += [f"- {_name(level)}: failed: {level['failures']}" for level in levels if level["failures"]]
    return "\n\n".join([*parts, "\n".join(notes)] if notes else parts)


def _name(level: dict[str, Any]) -> str:
    return f"{_servers(level)}, {level['clients']} clients"


def _servers(level: dict[str, Any]) -> str:
    count = level["api_server_count"]
    return "server" if count is None else f"{count} API server{'' if count == 1 else 's'}"


def _load_table(levels: list[dict[str, Any]]) -> str:
    rows: list[list[str]] = []
    for level in levels:
        median = level["median"]
        e2e = median["latency_seconds"]["e2e"]
        rates = [median.get("requests_per_second"), median.get("prompt_tokens_per_second")]
        latencies = [None if key not in e2e else e2e[key] * 1000 for key in ("mean", "p50", "p99")]
        busy = [median["client"]["core_share"] * 100]
        row = [_servers(level), f"{level['clients']}"]
        rows.append([*row, *(number(value) for value in rates + latencies + busy)])
    return table(["servers", "clients", "req/s", "tokens/s", "mean ms", "p50 ms", "p99 ms", "client core %"], rows)


def _offline_line(offline: dict[str, float], levels: list[dict[str, Any]]) -> str:
    rate = offline["requests_per_second"]
    best = max((level["median"].get("requests_per_second") or 0.0 for level in levels), default=0.0)
    return (
        f"Offline, {offline['texts_at_once']:.0f} texts at once: {number(rate)} texts/s, "
        f"{number(offline['tokens_per_second'])} tokens/s. Best online ÷ offline: {best / rate:.2f}."
    )


def _cpu_table(levels: list[dict[str, Any]]) -> str:
    parts = [_parts(level["median"]["server"]) for level in levels]
    names = list(dict.fromkeys(name for part in parts for name in part))
    rows: list[list[str]] = []
    for level, part in zip(levels, parts, strict=True):
        costs = [part.get(name, {}).get("cpu_seconds_per_request") for name in names]
        shares = [part.get(name, {}).get("core_share") for name in names]
        cells = [None if value is None else value * 1000 for value in costs]
        cells += [None if value is None else value * 100 for value in shares]
        rows.append([_servers(level), f"{level['clients']}", *(number(value) for value in cells)])
    header = [*(f"{name}, CPU ms/req" for name in names), *(f"{name}, core %" for name in names)]
    return table(["servers", "clients", *header], rows)


def _parts(server: dict[str, Any]) -> dict[str, Any]:
    """Our API servers as a sum, since their number differs from row to row; a peer's processes as they are."""
    ours = [role for role in server if role.startswith("api-")]
    if not ours:
        return server
    parts = {"API servers": server.get("api (all)") or server[ours[0]]}
    return parts | {role: server[role] for role in ("engine", "server (all)") if role in server}


def panels(document: dict[str, Any]) -> list[Panel]:
    """Throughput to the right, latency upwards: the lower right is the place to be."""
    levels = [level for level in document["levels"] if level["median"]["latency_seconds"]["e2e"]["count"]]
    lines: dict[str, list[tuple[float, float]]] = {}
    labels: dict[str, list[str]] = {}
    for level in levels:
        median = level["median"]
        point = (median["prompt_tokens_per_second"], median["latency_seconds"]["e2e"]["mean"] * 1000)
        lines.setdefault(_servers(level), []).append(point)
        labels.setdefault(_servers(level), []).append(f"{level['clients']}")
    offline = document["offline"]
    references = {} if offline is None else {"offline": offline["median"]["tokens_per_second"]}
    return [
        Lines(
            title=f"{document['model']}, {document['settings']['tokens']} tokens; beside each point: clients",
            x_label="tokens/s (right is better)",
            y_label="mean latency, ms (lower is better)",
            series=lines,
            y_scale="log",
            references=references,
            point_labels=labels,
        )
    ]

"""What the samples and clocks of a load test amount to, as a document of plain numbers and as tables for a person."""

from collections import Counter as Tally
from collections.abc import Mapping, Sequence
from typing import Any

from benchlib.endpoints import Sample
from benchlib.plot import Lines, Panel
from benchlib.processes import Spent
from benchlib.report import number, table
from benchlib.stats import summarize

_LATENCIES = ("ttft", "itl", "tpot", "e2e")


def outcome(samples: Sequence[Sample], spent: Spent) -> dict[str, Any]:
    """One run's numbers: throughput, latencies in seconds, CPU in seconds, whole and per request and output token."""
    good = [sample for sample in samples if sample.failure is None]
    seconds = max((sample.ended for sample in samples), default=0.0) - min((s.due for s in samples), default=0.0)
    output_tokens = sum(sample.output_tokens for sample in good)
    prompt_tokens = sum(sample.prompt_tokens for sample in good)
    failures = Tally(sample.failure for sample in samples if sample.failure is not None)
    return {
        "succeeded": len(good),
        "failed": len(samples) - len(good),
        "failures": dict(failures),
        "seconds": seconds,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "requests_per_second": _ratio(len(good), seconds),
        "prompt_tokens_per_second": _ratio(prompt_tokens, seconds),
        "output_tokens_per_second": _ratio(output_tokens, seconds),
        "latency_seconds": {
            "ttft": summarize([sample.ttft for sample in good if sample.ttft is not None]),
            "itl": summarize([gap for sample in good for gap in sample.itl]),
            "tpot": summarize([sample.tpot for sample in good if sample.tpot is not None]),
            "e2e": summarize([sample.e2e for sample in good]),
            "send_lag": summarize([sample.sent - sample.due for sample in good]),
        },
        "client": {
            "cpu_seconds": spent.client_seconds,
            "core_share": spent.client_seconds / spent.wall_seconds,
            "cpu_seconds_per_output_token": _ratio(spent.client_seconds, output_tokens),
        },
        "others": {"cpu_seconds": spent.others_seconds, "core_share": spent.others_seconds / spent.wall_seconds},
        "server": {
            role: {
                "cpu_seconds": used,
                "core_share": used / spent.wall_seconds,
                "cpu_seconds_per_request": _ratio(used, len(good)),
                "cpu_seconds_per_output_token": _ratio(used, output_tokens),
            }
            for role, used in _with_sums(spent.server_seconds).items()
        },
    }


def _ratio(amount: float, of: float) -> float | None:
    return amount / of if of else None


def _with_sums(seconds: Mapping[str, float]) -> dict[str, float]:
    """The roles, and what all API servers and all processes used together."""
    by_slot = [used for role, used in seconds.items() if role.startswith("api-")]
    sums = dict(seconds)
    if len(by_slot) > 1:
        sums["api (all)"] = sum(by_slot)
    if len(seconds) > 1:
        sums["server (all)"] = sum(seconds.values())
    return sums


def render(document: dict[str, Any]) -> str:
    """The document as Markdown tables: throughput, latency, server CPU, and what failed."""
    settings, levels = document["settings"], document["levels"]
    tokens = f"{settings['input_tokens']} tokens in"
    if settings["endpoint"] != "embeddings":
        tokens += f", {settings['output_tokens']} out, {'stream' if settings['stream'] else 'no stream'}"
    label = f"{document['label']}: " if document["label"] else ""
    parts = [
        f"{label}{settings['endpoint']} of {document['model']}, {tokens}, median of {settings['repeat']}",
        _throughput_table(levels),
        _latency_table(levels),
    ]
    if any(level["median"]["server"] for level in levels):
        parts.append(_cpu_table(levels))
    notes = [f"- {level['load']}: {note}" for level in levels for note in level["notes"]]
    if notes:
        parts.append("\n".join(notes))
    if any(level["failures"] for level in levels):
        parts.append(_failure_table(levels))
    return "\n\n".join(parts)


def panels(document: dict[str, Any]) -> list[Panel]:
    """Latency percentiles over the load, for each kind of latency that was measured; and the throughput."""
    levels = document["levels"]
    by_rate = levels[0]["rate"] is not None
    axis = "requests per second offered" if by_rate else "clients"
    places = [level["rate" if by_rate else "concurrency"] for level in levels]

    def line(name: str, key: str) -> list[tuple[float, float]]:
        summaries = [level["median"]["latency_seconds"][name] for level in levels]
        pairs = zip(places, summaries, strict=True)
        return [(place, summary[key] * 1000) for place, summary in pairs if summary["count"]]

    shown: list[Panel] = [
        Lines(
            title=name.upper(),
            x_label=axis,
            y_label="ms",
            series={key: line(name, key) for key in ("p50", "p90", "p99")},
            x_scale="log",
            y_scale="log",
        )
        for name in _LATENCIES
        if line(name, "p50")
    ]
    rates = [level["median"].get("requests_per_second") or 0.0 for level in levels]
    series = {"answered": list(zip(places, rates, strict=True))}
    shown.append(Lines(title="throughput", x_label=axis, y_label="requests/s", series=series, x_scale="log"))
    return shown


def _throughput_table(levels: list[dict[str, Any]]) -> str:
    header = ["load", "succeeded", "failed", "req/s", "prompt tok/s", "output tok/s", "client core %", "others core %"]
    rows: list[list[str]] = []
    for level in levels:
        median = level["median"]
        rates = [median.get(f"{what}_per_second") for what in ("requests", "prompt_tokens", "output_tokens")]
        shares = [median[who]["core_share"] * 100 for who in ("client", "others")]
        counts = [str(level["succeeded"]), str(sum(level["failures"].values()))]
        rows.append([level["load"], *counts, *(number(value) for value in rates + shares)])
    return table(header, rows)


def _latency_table(levels: list[dict[str, Any]]) -> str:
    rows: list[list[str]] = []
    for level in levels:
        for name in _LATENCIES:
            summary = level["median"]["latency_seconds"][name]
            if summary["count"]:
                values = [summary[key] * 1000 for key in ("mean", "p50", "p90", "p99", "max")]
                rows.append([level["load"], name.upper(), *(number(value) for value in values)])
    return table(["load", "latency, ms", "mean", "p50", "p90", "p99", "max"], rows)


def _cpu_table(levels: list[dict[str, Any]]) -> str:
    rows: list[list[str]] = []
    for level in levels:
        for role, used in level["median"]["server"].items():
            per_request, per_token = (used.get(f"cpu_seconds_per_{what}") for what in ("request", "output_token"))
            values = [None if value is None else value * 1000 for value in (per_request, per_token)]
            rows.append([level["load"], role, *(number(value) for value in [*values, used["core_share"] * 100])])
    return table(["load", "server CPU", "ms/request", "ms/output token", "core %"], rows)


def _failure_table(levels: list[dict[str, Any]]) -> str:
    rows = [
        [level["load"], kind, str(count), " ".join(level["failure_examples"][kind].replace("|", "\\|").split())[:120]]
        for level in levels
        for kind, count in level["failures"].items()
    ]
    return table(["load", "failure", "requests", "for example"], rows)

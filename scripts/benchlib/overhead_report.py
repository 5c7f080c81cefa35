"""What `bench_overhead` shows: the two sides and their difference, the stages, the CPU."""

from typing import Any

from benchlib.plot import Bars, Panel
from benchlib.report import number, table


def render(document: dict[str, Any]) -> str:
    """The document as Markdown tables."""
    settings, levels = document["settings"], document["levels"]
    what = settings["endpoint"]
    if what == "completions":
        what += f" of {settings['output_tokens']} tokens"
    where = "" if document["encoder"] is None else f"; offline encoder {document['encoder']}"
    label = f"{document['label']}: " if document["label"] else ""
    parts = [
        f"{label}{what}, {document['model']}, one client, median of {settings['repeat']}{where}",
        _latency_table(levels),
        _stage_table(levels),
        _cpu_table(levels),
    ]
    failures = [
        f"- {level['tokens']} tokens: {level['failed']} failed, for example {run['failure_example']}"
        for level in levels
        for run in level["runs"]
        if run["failed"]
    ]
    return "\n\n".join([*parts, "\n".join(failures)] if failures else parts)


def _milliseconds(summary: dict[str, float] | None, key: str) -> str:
    value = (summary or {}).get(key)
    return number(None if value is None else value * 1000)


def _latency_table(levels: list[dict[str, Any]]) -> str:
    rows: list[list[str]] = []
    for level in levels:
        median = level["median"]
        cells = [f"{level['tokens']}", number(median["prompt_tokens"].get("mean"))]
        for side in ("offline_seconds", "online_seconds", "added_seconds"):
            cells += [_milliseconds(median.get(side), key) for key in ("mean", "p50")]
        cells.append(_milliseconds(median["online_seconds"], "p99"))
        rows.append(cells)
    header = ["tokens", "counted", "offline mean ms", "p50", "online mean ms", "p50", "added mean ms", "p50"]
    return table([*header, "online p99"], rows)


def _stage_table(levels: list[dict[str, Any]]) -> str:
    """Where the online time goes, as far as the server tells it."""
    rows: list[list[str]] = []
    for level in levels:
        stages: dict[str, dict[str, float]] = level["median"]["stages_seconds"]
        if not stages:
            continue
        online = level["median"]["online_seconds"]
        rest = {key: online[key] - sum(stage[key] for stage in stages.values()) for key in ("mean", "p50")}
        for name, summary in {**stages, "(client, sockets, HTTP)": rest}.items():
            rows.append([f"{level['tokens']} tokens", name, *(_milliseconds(summary, key) for key in ("mean", "p50"))])
    if not rows:
        return "The server sends no Server-Timing header, so its stages are not known."
    return table(["request", "stage", "mean ms", "p50 ms"], rows)


def _cpu_table(levels: list[dict[str, Any]]) -> str:
    roles = list(dict.fromkeys(role for level in levels for role in level["median"]["cpu_seconds_per_request"]))
    rows = [
        [
            f"{level['tokens']} tokens",
            *(_milliseconds(level["median"]["cpu_seconds_per_request"], role) for role in roles),
        ]
        for level in levels
    ]
    return table(["CPU ms per request", *roles], rows)


def panels(document: dict[str, Any]) -> list[Panel]:
    """Offline and online side by side; and the stages, one on another."""
    levels = document["levels"]
    categories = [f"{level['tokens']} tokens" for level in levels]

    def side(name: str) -> list[float | None]:
        summaries = [level["median"].get(name) for level in levels]
        return [None if summary is None else summary["mean"] * 1000 for summary in summaries]

    sides = {"offline": side("offline_seconds"), "online": side("online_seconds"), "added": side("added_seconds")}
    shown = {name: values for name, values in sides.items() if any(value is not None for value in values)}
    found: list[Panel] = [
        Bars(title="one request", y_label="mean, ms", categories=categories, series=shown, y_scale="log")
    ]
    names = list(dict.fromkeys(name for level in levels for name in level["median"]["stages_seconds"]))
    if names:
        stages = {
            name: [level["median"]["stages_seconds"].get(name, {}).get("mean", 0.0) * 1000 for level in levels]
            for name in names
        }
        found.append(
            Bars(title="Server-Timing", y_label="mean, ms", categories=categories, series=stages, is_stacked=True)
        )
    return found

"""What `bench_mixed` shows: a row a configuration without and with the long chats, and how much they cost the short."""

from collections.abc import Mapping
from typing import Any

from benchlib.plot import Bars, Panel
from benchlib.report import number, table


def render(document: dict[str, Any]) -> str:
    """The document as Markdown tables."""
    settings, levels = document["settings"], document["levels"]
    label = f"{document['label']}: " if document["label"] else ""
    tokens = levels[-1]["median"]["long"]["prompt_tokens"].get("mean")
    parts = [
        f"{label}{document['model']}: {settings['short_clients']} clients with short streaming chats "
        f"({settings['short_tokens']} tokens in, {settings['output_tokens']} out), without and with "
        f"{settings['long_clients']} with long ones ({number(tokens)} in, {settings['output_tokens']} out); /v1/models "
        f"every {settings['poll_ms']:g} ms; {settings['duration']:g} s, median of {settings['repeat']}",
        _table(levels),
        _ratios(levels),
    ]
    notes = [f"- {note}" for note in document["notes"]]
    notes += [
        f"- {level['config']}, {level['long']} long: {count} times {kind}"
        for level in levels
        for kind, count in level["failures"].items()
    ]
    return "\n\n".join([*parts, "\n".join(notes)] if notes else parts)


def _table(levels: list[dict[str, Any]]) -> str:
    rows: list[list[str]] = []
    for level in levels:
        median = level["median"]
        short, long = median["short"], median["long"]
        polls = median["models_seconds"]
        seconds = [short["ttft_seconds"].get("p50"), short["ttft_seconds"].get("p99"), long["ttft_seconds"].get("p50")]
        seconds += [polls.get(key) for key in ("p50", "p99", "max")]
        rows.append(
            [
                level["config"],
                level["long"],
                f"{short['completed']:.0f}",
                f"{long['completed']:.0f}",
                *(number(None if value is None else value * 1000) for value in seconds),
                *(number(share) for share in _shares(median["core_share"]).values()),
            ]
        )
    header = ["configuration", "long chats", "short done", "long done", "short TTFT p50 ms", "p99", "long TTFT p50"]
    header += ["/v1/models p50 ms", "p99", "max", *(f"{name} core %" for name in _shares(median["core_share"]))]
    return table(header, rows)


def _shares(core_share: Mapping[str, float]) -> dict[str, float]:
    """Percent of a core: of all front-end processes, of the engine, of our client."""
    ours = [share for role, share in core_share.items() if role.startswith("api-")]
    others = [share for role, share in core_share.items() if role not in ("engine", "client")]
    return {
        "front end": 100 * sum(ours or others),
        "engine": 100 * core_share.get("engine", 0.0),
        "client": 100 * core_share["client"],
    }


def _pairs(levels: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    pairs: dict[str, dict[str, dict[str, Any]]] = {}
    for level in levels:
        pairs.setdefault(level["config"], {})[level["long"]] = level["median"]
    return pairs


def _ratios(levels: list[dict[str, Any]]) -> str:
    """With the long chats ÷ without them."""
    rows: list[list[str]] = []
    for config, pair in _pairs(levels).items():
        values: list[float | None] = []
        for path in (("short", "ttft_seconds"), ("models_seconds",)):
            summaries = []
            for name in ("without", "with"):
                place: Any = pair[name]
                for key in path:
                    place = place[key]
                summaries.append(place)
            without, with_long = summaries
            values += [_ratio(with_long.get(key), without.get(key)) for key in ("p50", "p99")]
        rows.append([config, *(number(value) for value in values)])
    return table(["with ÷ without", "short TTFT p50", "p99", "/v1/models p50", "p99"], rows)


def _ratio(value: float | None, of: float | None) -> float | None:
    return value / of if value is not None and of else None


def panels(document: dict[str, Any]) -> list[Panel]:
    """The 99th percentiles, without and with, a group a configuration."""
    pairs = _pairs(document["levels"])

    def bars(title: str, *path: str) -> Bars:
        series: dict[str, list[float | None]] = {}
        for name in ("without", "with"):
            values: list[float | None] = []
            for pair in pairs.values():
                place: Any = pair[name]
                for key in path:
                    place = place.get(key, {})
                values.append(place * 1000 if isinstance(place, float) else None)
            series[f"{name} long chats"] = values
        categories = [config.replace(", ", "\n") for config in pairs]
        return Bars(title=title, y_label="ms", categories=categories, series=series, y_scale="log")

    return [
        bars("short chats: TTFT p50", "short", "ttft_seconds", "p50"),
        bars("short chats: TTFT p99", "short", "ttft_seconds", "p99"),
        bars("/v1/models: p99", "models_seconds", "p99"),
        bars("/v1/models: maximum", "models_seconds", "max"),
    ]

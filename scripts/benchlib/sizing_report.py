"""What `bench_pool` shows: start-up, memory, CPU and balance, a row a number of API servers."""

from typing import Any

from benchlib.plot import Lines, Panel
from benchlib.report import number, table

_MEGABYTE = 1e6


def render(document: dict[str, Any]) -> str:
    """The document as Markdown tables."""
    settings, levels = document["settings"], document["levels"]
    label = f"{document['label']}: " if document["label"] else ""
    what = f"{settings['endpoint']} of {settings['tokens']} tokens, {settings['requests']} per API server"
    parts = [
        f"{label}{what}; tokenizer {settings['tokenizer'] or 'of the model'}, median of {settings['repeat']}",
        _startup_table(levels),
        _memory_table(levels),
        _cpu_table(levels),
        _balance_table(levels, settings["busy"]),
    ]
    return "\n\n".join(part for part in parts if part)


def _count(level: dict[str, Any]) -> str:
    return f"{level['api_server_count'] or level['median']['api_servers']:.0f}"


def _startup_table(levels: list[dict[str, Any]]) -> str:
    rows = [
        [_count(level), *(number(seconds.get(key)) for key in ("command_to_ready", "engine_to_ready"))]
        for level in levels
        if (seconds := level["median"].get("seconds"))
    ]
    header = ["API servers", "command to ready, s", "engine loaded to all ready, s"]
    return table(header, rows) if rows else ""


def _memory_table(levels: list[dict[str, Any]]) -> str:
    """Megabytes of each part; the API servers' is the mean of one."""
    rows: list[list[str]] = []
    for level in levels:
        median = level["median"]
        for part, fresh in median["memory_fresh"].items():
            after = median["memory_after"].get(part, {})
            values = [fresh["pss"], fresh["uss"], after.get("pss"), after.get("uss"), after.get("uss_max")]
            cells = [number(None if value is None else value / _MEGABYTE) for value in values]
            rows.append([_count(level), part, *cells])
    if not rows:
        return "No process of the server can be seen: memory and CPU are not known (--server-pid)."
    return table(["API servers", "MB of each", "PSS fresh", "USS", "PSS after", "USS", "largest USS"], rows)


def _cpu_table(levels: list[dict[str, Any]]) -> str:
    rows: list[list[str]] = []
    for level in levels:
        median = level["median"]
        idle = [median["idle_share"].get(part) for part in ("API server", "engine", "supervisor")]
        costs = [median["cpu_seconds_per_request"].get(part) for part in ("API servers", "engine", "all")]
        rows.append(
            [
                _count(level),
                *(number(None if share is None else share * 100) for share in idle),
                number(median.get("requests_per_second")),
                *(number(None if cost is None else cost * 1000) for cost in costs),
                f"{median['failed']:.0f}",
            ]
        )
    header = ["API servers", "idle: each API server, core %", "engine", "supervisor", "loaded: req/s"]
    return table([*header, "API servers, CPU ms/req", "engine", "all", "failed"], rows)


def _balance_table(levels: list[dict[str, Any]], busy: int) -> str:
    """The fullest API server ÷ the mean."""
    rows: list[list[str]] = []
    for level in levels:
        for amount, found in level["median"]["balance"].items():
            new, total = found["beside"]["new"], found["beside"]["total"]
            at_once = found["at_once"]
            values = [at_once["best_possible"], at_once["median"], at_once["worst"]]
            values += [new["median"], new["worst"], total["median"], total["worst"]]
            even = f"{at_once['even_share']:.0%}"
            cells = [f"{value:.2f}" for value in values]
            rows.append([_count(level), amount, *cells[:3], even, *cells[3:]])
    if not rows:
        return ""
    header = ["API servers", "connections", "max/mean: best possible", "at once", "worst", "as even as can be"]
    header += [f"new beside {busy} busy", "worst", "all of them", "worst"]
    return table(header, rows)


def panels(document: dict[str, Any]) -> list[Panel]:
    """Start-up, memory, CPU and balance over the number of API servers."""
    levels = document["levels"]
    places = [level["api_server_count"] or level["median"]["api_servers"] for level in levels]
    medians = [level["median"] for level in levels]

    def line(*path: str, scale: float = 1.0) -> list[tuple[float, float]]:
        points: list[tuple[float, float]] = []
        for place, median in zip(places, medians, strict=True):
            value: Any = median
            for key in path:
                value = value.get(key, {}) if isinstance(value, dict) else {}
            if isinstance(value, int | float):
                points.append((place, value * scale))
        return points

    def lines(title: str, y_label: str, series: dict[str, list[tuple[float, float]]]) -> Lines:
        shown = {name: points for name, points in series.items() if points}
        return Lines(title=title, x_label="API servers", y_label=y_label, series=shown, x_scale="log")

    amounts = list(dict.fromkeys(amount for median in medians for amount in median["balance"]))
    seconds = {
        "command to ready": line("seconds", "command_to_ready"),
        "engine loaded to all ready": line("seconds", "engine_to_ready"),
    }
    memory = {
        f"{what.upper()} {when}": line(f"memory_{when}", "API server", what, scale=1 / _MEGABYTE)
        for when in ("fresh", "after")
        for what in ("pss", "uss")
    }
    costs = {part: line("cpu_seconds_per_request", part, scale=1000) for part in ("API servers", "engine", "all")}
    balance = {f"{amount} connections": line("balance", amount, "at_once", "median") for amount in amounts}
    return [
        lines("start-up", "seconds", seconds),
        lines("memory of one API server", "MB", memory),
        lines("CPU of a request", "ms", costs),
        lines("connections: fullest API server to mean", "max/mean", balance),
    ]

"""Pictures of measurements. matplotlib is imported when one is drawn, since nothing else needs it."""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchlib.errors import CannotPlot

Points = Sequence[tuple[float, float]]

_PANEL_INCHES = (6.4, 4.2)
_MOST_IN_A_ROW = 2
_TICKS_LIMIT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """One set of axes with a line a series; `references` are upright lines at an x, each with its name."""

    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Points]
    x_scale: Literal["linear", "log"] = "linear"
    y_scale: Literal["linear", "log"] = "linear"
    references: Mapping[str, float] = field(default_factory=dict[str, float])
    point_labels: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Of a series, a word beside each of its points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """One set of axes with a group of bars a category, in it a bar a series (None: no bar)."""

    title: str
    y_label: str
    categories: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    y_scale: Literal["linear", "log"] = "linear"
    is_stacked: bool = False


Panel = Lines | Bars


def require() -> None:
    """Raise CannotPlot now rather than after a long measurement."""
    if importlib.util.find_spec("matplotlib") is None:
        raise CannotPlot("--plot needs matplotlib: pip install 'apiserver-pool[bench]'")


def draw(path: Path, panels: Sequence[Panel], *, title: str, footnote: str) -> None:
    """Write the panels side by side into one picture; its format is what the file's name ends in."""
    require()
    import matplotlib

    matplotlib.use("Agg")  # no window, wherever this runs
    from matplotlib import pyplot

    columns = min(len(panels), _MOST_IN_A_ROW)
    rows = -(-len(panels) // columns)
    width, height = _PANEL_INCHES
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(width * columns, height * rows + 0.8), squeeze=False, layout="constrained"
    )
    places: list[Any] = list(axes.flat)
    for place, panel in zip(places, panels, strict=False):
        match panel:
            case Lines():
                _lines(place, panel)
            case Bars():
                _bars(place, panel)
        place.set_title(panel.title, fontsize="medium")
        place.set_ylabel(panel.y_label)
        _scale_y(place, panel)
        place.grid(visible=True, alpha=0.3)
        if place.get_legend_handles_labels()[0]:
            place.legend(fontsize="small")
    for place in places[len(panels) :]:
        place.set_axis_off()
    figure.suptitle(title)
    figure.supxlabel(footnote, fontsize="x-small", color="gray")
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


def _scale_y(place: Any, panel: Panel) -> None:
    """Logarithmic where that is wanted and can be, with plain numbers beside it."""
    heights = [
        point[1] if isinstance(point, tuple) else point
        for points in panel.series.values()
        for point in points
        if point is not None
    ]
    if panel.y_scale == "linear" or min(heights, default=0.0) <= 0:
        return
    from matplotlib import ticker

    place.set_yscale("log")
    place.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    place.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    place.yaxis.set_minor_locator(ticker.NullLocator())


def _lines(place: Any, panel: Lines) -> None:
    for name, points in panel.series.items():
        place.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=4, label=name)
        for (x, y), label in zip(points, panel.point_labels.get(name, ()), strict=False):
            place.annotate(label, (x, y), textcoords="offset points", xytext=(4, 4), fontsize="x-small")
    for number, (name, x) in enumerate(panel.references.items()):
        place.axvline(x, linestyle="--", color=f"C{7 + number}", label=name)
    place.set_xlabel(panel.x_label)
    place.set_xscale(panel.x_scale)
    ticks = sorted({x for points in panel.series.values() for x, _ in points})
    if panel.x_scale == "log" and 0 < len(ticks) <= _TICKS_LIMIT:
        # Of doublings, each has its own number; powers of ten would leave most unnamed.
        place.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
        place.minorticks_off()


def _bars(place: Any, panel: Bars) -> None:
    count = 1 if panel.is_stacked else len(panel.series)
    width = 0.8 / max(1, count)
    bottoms = [0.0] * len(panel.categories)
    for number, (name, values) in enumerate(panel.series.items()):
        shift = 0.0 if panel.is_stacked else (number - (count - 1) / 2) * width
        heights = [0.0 if value is None else value for value in values]
        places = [index + shift for index in range(len(panel.categories))]
        bars = place.bar(places, heights, width, bottom=bottoms if panel.is_stacked else None, label=name)
        if panel.is_stacked:
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
        else:
            place.bar_label(bars, fmt="%.3g", fontsize="x-small", padding=2)
    place.set_xticks(range(len(panel.categories)), panel.categories, fontsize="small")
    if any(len(line) > 12 for category in panel.categories for line in category.splitlines()):
        place.tick_params(axis="x", labelrotation=20)

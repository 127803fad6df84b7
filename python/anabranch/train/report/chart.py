# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Line charts as inline SVG that stretches, under HTML labels that do not.

Every drawing has the same 1000 x 1000 coordinate system and fills its frame; strokes keep their
width. Tick labels are text of the page, so they stay readable on a phone and follow the theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.train.report.axis import Axis
from anabranch.train.report.markup import safe

_MAX_POINTS = 240


@dataclass(frozen=True)
class Series:
    """Values over steps; `colour` is the name of a page colour.

    `kind` is "line", "dots", or "flags": points on the lower edge wherever y is finite.
    """

    label: str
    x: np.ndarray
    y: np.ndarray
    colour: str = "c1"
    kind: str = "line"


@dataclass(frozen=True)
class Chart:
    """What one figure shows. `references` are labelled levels, `marks` are vertical lines."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    references: Sequence[tuple[str, float]] = ()
    marks: Sequence[tuple[str, float]] = ()
    wide: bool = False
    legend: str = ""


def draw(chart: Chart) -> str:
    """Returns the figure as HTML."""
    shown = [series for series in chart.series if np.isfinite(series.y).any()]
    if not shown:
        inside = '<p class="empty">nothing logged yet</p>'
    else:
        levels = _levels(chart)
        inside = _svg(chart, shown, levels) + _labels(chart, levels)
    axes = f'data-x="{_domain(chart.x)}" data-y="{_domain(chart.y)}"'
    return figure(
        chart.title,
        f'<div class="plot" {axes}>{inside}</div>',
        unit=chart.y.label,
        x_label=chart.x.label,
        legend=chart.legend or _legend(chart, shown),
        wide=chart.wide,
    )


def figure(
    title: str,
    body: str,
    *,
    unit: str = "",
    x_label: str = "",
    legend: str = "",
    wide: bool = False,
) -> str:
    """Returns a titled figure around `body`; `body` and `legend` are HTML, the rest is text."""
    parts = [f'<figure class="{"wide" if wide else "half"}"><figcaption><h3>{safe(title)}</h3>']
    parts.append(f'<span class="unit">{safe(unit)}</span>{legend}</figcaption>{body}')
    if x_label:
        parts.append(f'<div class="x-label">{safe(x_label)}</div>')
    return "".join(parts) + "</figure>"


def x_ticks(axis: Axis) -> str:
    """Returns the labels under a plot."""
    return "".join(
        f'<span class="tick x" style="left:{100 * place:.2f}%">{label}</span>'
        for place, label in axis.ticks()
    )


def y_ticks(axis: Axis) -> str:
    """Returns the labels left of a plot."""
    return "".join(
        f'<span class="tick y" style="top:{100 - 100 * place:.2f}%">{label}</span>'
        for place, label in axis.ticks()
    )


def _domain(axis: Axis) -> str:
    kind = "log" if axis.log else "percent" if axis.percentage else "linear"
    return f"{kind} {axis.low:.9g} {axis.high:.9g}"


def _levels(chart: Chart) -> list[tuple[str, float]]:
    """Returns the references inside the range, with their height between 0 and 1."""
    places = [(label, float(chart.y.place(np.array(y)))) for label, y in chart.references]
    return [(label, place) for label, place in places if 0 <= place <= 1]


def _svg(chart: Chart, shown: Sequence[Series], levels: Sequence[tuple[str, float]]) -> str:
    grid = "".join(f"M0 {_height(place):.1f}H1000" for place, _ in chart.y.ticks())
    parts = [
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" '
        f'aria-label="{safe(_description(chart, shown))}"><path class="grid" d="{grid}"/>'
    ]
    for _, x in chart.marks:
        parts.append(f'<path class="mark" d="M{1000 * float(chart.x.place(x)):.1f} 0V1000"/>')
    parts += [f'<path class="level" d="M0 {_height(place):.1f}H1000"/>' for _, place in levels]
    parts += [_path(chart, series) for series in shown]
    return "".join(parts) + "</svg>"


def _height(place: np.ndarray | float) -> np.ndarray | float:
    return 1000 * (1 - place)


def _description(chart: Chart, shown: Sequence[Series]) -> str:
    names = ", ".join(series.label for series in shown[:8])
    return f"{chart.title} ({chart.y.label}) against {chart.x.label}: {names}"


def _path(chart: Chart, series: Series) -> str:
    name = f'data-name="{safe(series.label)}"'
    if series.kind == "flags":
        across = 1000 * chart.x.place(series.x[np.isfinite(series.y)])
        flags = _dots(across, np.full(len(across), 985.0))
        return f'<path class="dots {series.colour}" d="{flags}"/>'
    if series.kind == "dots":
        dots = _dots(1000 * chart.x.place(series.x), _height(chart.y.place(series.y)))
        return f'<path class="dots {series.colour}" {name} d="{dots}"/>'
    x, y, low, high = thin(series.x, series.y)
    across, up = 1000 * chart.x.place(x), _height(chart.y.place(y))
    line = f'<path class="line {series.colour}" {name} d="{_polyline(across, up)}"/>'
    alone = _dots(across, np.where(_isolated(up), up, np.nan))
    if alone:
        line += f'<path class="dots {series.colour}" d="{alone}"/>'
    if low is None or len(chart.series) > 4:
        return line
    top, bottom = _height(chart.y.place(high)), _height(chart.y.place(low))
    return f'<path class="band {series.colour}" d="{_area(across, top, bottom)}"/>{line}'


def _isolated(values: np.ndarray) -> np.ndarray:
    """Returns which finite values have no finite neighbour: a line alone would not show them."""
    known = np.pad(np.isfinite(values), 1)
    return known[1:-1] & ~known[:-2] & ~known[2:]


def _dots(across: np.ndarray, up: np.ndarray) -> str:
    points = zip(across.tolist(), up.tolist(), strict=True)
    return "".join(f"M{a:.1f} {b:.2f}h0" for a, b in points if np.isfinite(a + b))


def _polyline(across: np.ndarray, up: np.ndarray) -> str:
    parts, drawing = [], False
    for a, b in zip(across.tolist(), up.tolist(), strict=True):
        known = np.isfinite(a + b)
        if known:
            parts.append(f"{'L' if drawing else 'M'}{a:.1f} {b:.2f}")
        drawing = known
    return "".join(parts)


def _area(across: np.ndarray, top: np.ndarray, bottom: np.ndarray) -> str:
    keep = np.isfinite(across) & np.isfinite(top) & np.isfinite(bottom)
    points = list(zip(across[keep], top[keep], strict=True))
    points += list(zip(across[keep], bottom[keep], strict=True))[::-1]
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points) + "Z" if points else ""


def thin(
    x: np.ndarray, y: np.ndarray, limit: int = _MAX_POINTS
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Returns x, y and, when there are more than `limit` points, the range of each mean."""
    if len(x) <= limit:
        return x, y, None, None
    parts = np.array_split(np.arange(len(x)), limit)
    rows = [_summary(x[part], y[part]) for part in parts]
    columns = np.array(rows).T
    return columns[0], columns[1], columns[2], columns[3]


def _summary(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float, float]:
    finite = y[np.isfinite(y)]
    if not finite.size:
        return float(x.mean()), np.nan, np.nan, np.nan
    return float(x.mean()), float(finite.mean()), float(finite.min()), float(finite.max())


def _labels(chart: Chart, levels: Sequence[tuple[str, float]]) -> str:
    parts = [y_ticks(chart.y), x_ticks(chart.x)]
    for label, place in levels:
        below = " below" if place > 0.9 else ""
        parts.append(
            f'<span class="level-label{below}" style="top:{100 - 100 * place:.2f}%">'
            f"{safe(label)}</span>"
        )
    for label, x in chart.marks:
        left = 100 * float(chart.x.place(np.array(x)))
        side = " flipped" if left > 70 else ""
        parts.append(
            f'<span class="mark-label{side}" style="left:{left:.2f}%">{safe(label)}</span>'
        )
    return "".join(parts)


def _legend(chart: Chart, shown: Sequence[Series]) -> str:
    if len(chart.series) < 2:
        return ""
    items = "".join(
        f'<li><i class="key {series.kind} {series.colour}"></i>{safe(series.label)}</li>'
        for series in shown
    )
    return f'<ul class="legend">{items}</ul>'

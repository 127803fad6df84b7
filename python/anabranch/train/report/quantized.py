# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What quantisation did to each operand of each product in each layer, at the last step that says so.

One table each for the signal-to-noise ratio, what was clipped and what became zero. A cell holds a strip with
a colour for each layer, first layer left, and the number of the worst one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anabranch.train.report import units
from anabranch.train.report.chart import figure
from anabranch.train.report.heat_map import embedded, palette, png
from anabranch.train.report.markup import safe
from anabranch.train.report.run_log import Record, RunLog, number

_LEVELS = 15
_LIGHT = ("#e9f1ef", "#a9cfc4", "#f0c27a", "#dd7a2e", "#9c2f0d", "#ffffff")
_DARK = ("#24403a", "#3d7a6a", "#b98a34", "#e2803a", "#ff8f6b", "#1b1f23")
# Ends of the scales: 40 dB is better than E4M3 with one scale per element gets, 10 dB hardly a signal.
_BEST_DB, _WORST_DB = 40.0, 10.0
_LEAST_SHARE = 1e-6  # and anything below; 1 is the other end
_MAX_ROWS = 32
_MAX_LAYERS = 1024


@dataclass(frozen=True)
class _Metric:
    key: str
    title: str
    unit: str
    badness: Callable[[np.ndarray], np.ndarray]  # 0 to 1
    worst: Callable[[np.ndarray], float]
    text: Callable[[float], str]


def _share_text(share: float) -> str:
    if share == 0 or not math.isfinite(share):
        return "0" if share == 0 else units.MISSING
    return "< 0.01 %" if share < 1e-4 else units.percent(share, 2)


def _share_badness(shares: np.ndarray) -> np.ndarray:
    return 1 - np.log(np.maximum(shares, _LEAST_SHARE)) / math.log(_LEAST_SHARE)


_METRICS = (
    _Metric(
        "sqnr_db", "Signal to noise", f"dB of the worst layer; {_BEST_DB:g} pale, {_WORST_DB:g} dark",
        lambda decibel: (_BEST_DB - decibel) / (_BEST_DB - _WORST_DB), np.nanmin,
        lambda decibel: units.fixed(decibel, 1),
    ),
    _Metric(
        "saturated_share", "Saturated", "share clipped to the largest element, worst layer",
        _share_badness, np.nanmax, _share_text,
    ),
    _Metric(
        "flushed_share", "Flushed to zero", "share of numbers that became 0, worst layer",
        _share_badness, np.nanmax, _share_text,
    ),
)  # fmt: skip


class Table(NamedTuple):
    """values f64 [products, operands, layers], NaN where nothing was quantised."""

    operands: list[str]
    products: list[str]
    values: np.ndarray


def tables(record: Record) -> dict[str, Table] | None:
    """Returns a table for each metric from one step line, or None if it has none that can be read."""
    try:
        found = record["quantized"]
        operands = [str(name) for name in found["operands"]]
        layers = {int(layer["layer"]): layer["products"] for layer in found["layers"]}
        names = [_name(p, i) for products in layers.values() for i, p in enumerate(products)]
        products = list(dict.fromkeys(names))[:_MAX_ROWS]
        if not 0 <= min(layers) <= max(layers) < _MAX_LAYERS:
            return None
        shape = (len(products), len(operands), max(layers) + 1)
        result = {}
        for metric in _METRICS:
            values = np.full(shape, math.nan)
            for layer, given in layers.items():
                for i, product in enumerate(given):
                    if _name(product, i) in products:
                        at = values[products.index(_name(product, i)), :, layer]
                        at[:] = [number(value) for value in product[metric.key]]
            result[metric.key] = Table(operands, products, values)
        return result
    except (
        AttributeError,
        IndexError,
        KeyError,
        OverflowError,
        TypeError,
        ValueError,
        MemoryError,
    ):
        return None


def _name(product: Record, index: int) -> str:
    return str(product.get("name") or f"product {index + 1}")


def draw(log: RunLog) -> str:
    """Returns the tables of the last step that has any, or nothing."""
    for record in reversed(log.steps):
        found = tables(record) if record.get("quantized") else None
        if found is None:
            continue
        step = units.grouped(number(record["step"]))
        parts = [_figure(metric, found[metric.key], step) for metric in _METRICS]
        return f'<div class="quantized">{"".join(parts)}</div>'
    return ""


def _figure(metric: _Metric, table: Table, step: str) -> str:
    head = "".join(f'<th scope="col">{safe(name)}</th>' for name in table.operands)
    rows = "".join(
        f'<tr><th scope="row">{safe(name)}</th>{"".join(_cell(metric, cell) for cell in row)}</tr>'
        for name, row in zip(table.products, table.values, strict=True)
    )
    body = f'<div class="cells"><table><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    title = f"{metric.title}, step {step}"
    layers = units.counted(table.values.shape[2], "layer")
    return figure(
        title, body, unit=f"{metric.unit}; a strip has {layers}, the first one left", wide=True
    )


def _cell(metric: _Metric, values: np.ndarray) -> str:
    known = np.isfinite(values)
    if not known.any():
        return f"<td>{units.MISSING}</td>"
    badness = np.clip(metric.badness(np.where(known, values, 1.0)), 0, 1)
    levels = np.where(known, 1 + np.rint(badness * (_LEVELS - 1)), 0).astype(np.uint8)[None, :]
    strip = "".join(
        f'<img class="strip only-{theme}" alt="" src="{embedded(png(levels, palette(stops)))}">'
        for theme, stops in (("light", _LIGHT), ("dark", _DARK))
    )
    told = "; ".join(
        f"layer {layer}: {metric.text(value)}"
        for layer, value in enumerate(values.tolist())
        if math.isfinite(value)
    )
    return f'<td title="{safe(told)}">{strip}{metric.text(float(metric.worst(values)))}</td>'

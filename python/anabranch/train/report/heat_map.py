# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Expert load over time, one picture per mixture-of-experts layer.

A picture has a row per expert and a column per logged step, or per few of them. It is a PNG of 16
colours, made here and embedded: one for light pages and one for dark ones. The colours part
blue from orange around the mean, which every common colour vision tells apart; an expert that
received nothing has a colour of its own.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib

import numpy as np

from anabranch.train.report.axis import Axis
from anabranch.train.report.chart import figure, x_ticks, y_ticks
from anabranch.train.report.run_log import RunLog

MAX_COLUMNS = 120
MAX_ROWS = 256
MAX_LAYERS = 12
_MAX_PIXELS = 400_000  # of all pictures: about half a megabyte of page
_LEVELS = 15  # colours from a quarter of the mean to four times the mean, in equal ratios
_OCTAVES = 2.0

_LIGHT = ("#1f5a96", "#8fbbdd", "#f3f1ec", "#f0a35c", "#a8480b", "#17191c")
_DARK = ("#7fc1f5", "#33608a", "#23282d", "#9a5a1c", "#ffb066", "#e8476a")


def load_table(log: RunLog) -> tuple[np.ndarray, np.ndarray]:
    """Returns f64 [n] steps and f64 [n, MoE layers, experts] loads; only whole lines count."""
    steps: list[float] = []
    tables: list[np.ndarray] = []
    for record in log.steps:
        table = _table(record.get("expert_load"))
        if table is not None:
            steps.append(float(record["step"]))
            tables.append(table)
    if not tables:
        return np.empty(0), np.empty((0, 0, 0))
    keep = [i for i, table in enumerate(tables) if table.shape == tables[-1].shape]
    return np.array(steps)[keep], np.stack([tables[i] for i in keep])


def _table(value: object) -> np.ndarray | None:
    try:
        table = np.array(value, np.float64)
    except (TypeError, ValueError):
        return None
    usable = table.ndim == 2 and table.size and np.isfinite(table).all()
    return table if usable else None


def relative_load(
    steps: np.ndarray, loads: np.ndarray, columns: int, rows: int
) -> tuple[np.ndarray, Axis]:
    """Bins loads [n, L, E] to [L, rows, columns], each as a multiple of its layer's mean."""
    first, last = float(steps[0]), float(steps[-1])
    width = (last - first) / (len(steps) - 1) if len(steps) > 1 else 1.0
    axis = Axis(first - width / 2, last + width / 2, "step", whole=True)
    columns = min(columns, len(steps))
    bins = np.minimum((axis.place(steps) * columns).astype(int), columns - 1)
    summed = np.zeros((columns, *loads.shape[1:]))
    np.add.at(summed, bins, loads)
    filled = np.isin(np.arange(columns), bins)
    summed = summed[np.maximum.accumulate(np.where(filled, np.arange(columns), 0))]
    groups = np.array_split(np.arange(loads.shape[2]), min(rows, loads.shape[2]))
    summed = np.stack([summed[..., group].mean(axis=-1) for group in groups], axis=-1)
    mean = summed.mean(axis=-1, keepdims=True)
    relative = np.divide(summed, mean, out=np.zeros_like(summed), where=mean > 0)
    return relative.transpose(1, 2, 0), axis


def levels(relative: np.ndarray) -> np.ndarray:
    """Returns colour numbers: 0 for no load, else 1 to 15 with 8 around the mean."""
    octaves = np.log2(np.maximum(relative, 1e-9)) / _OCTAVES
    number = np.rint((octaves + 1) / 2 * (_LEVELS - 1)) + 1
    return np.where(relative > 0, np.clip(number, 1, _LEVELS), 0).astype(np.uint8)


def palette(stops: tuple[str, ...]) -> list[tuple[int, int, int]]:
    """Returns 16 colours: the last stop for no load, then the others from low to high."""
    anchors = np.array([_rgb(stop) for stop in stops[:-1]], float)
    at = np.linspace(0, len(anchors) - 1, _LEVELS)
    ramp = [np.interp(at, range(len(anchors)), anchors[:, channel]) for channel in range(3)]
    colours = np.rint(np.stack(ramp, axis=1)).astype(int)
    return [_rgb(stops[-1]), *(tuple(colour) for colour in colours.tolist())]


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def png(numbers: np.ndarray, colours: list[tuple[int, int, int]]) -> bytes:
    """Returns a 4-bit indexed PNG of u8 [height, width] colour numbers below 16."""
    height, width = numbers.shape
    even = np.pad(numbers, ((0, 0), (0, width % 2)))
    packed = (even[:, 0::2] << 4) | even[:, 1::2]
    rows = np.hstack([np.zeros((height, 1), np.uint8), packed])
    header = struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)
    plte = bytes(channel for colour in colours for channel in colour)
    chunks = ((b"IHDR", header), (b"PLTE", plte), (b"IDAT", zlib.compress(rows.tobytes(), 9)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*c) for c in (*chunks, (b"IEND", b"")))


def _chunk(kind: bytes, body: bytes) -> bytes:
    check = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", check)


def draw(log: RunLog) -> str:
    """Returns the pictures of all layers, or of evenly chosen ones when there are many."""
    steps, loads = load_table(log)
    if not len(steps):
        return ""
    layers = loads.shape[1]
    chosen = np.unique(np.linspace(0, layers - 1, min(layers, MAX_LAYERS)).round().astype(int))
    rows = min(MAX_ROWS, loads.shape[2])
    columns = max(1, min(MAX_COLUMNS, _MAX_PIXELS // (rows * len(chosen))))
    relative, axis = relative_load(steps, loads[:, chosen], columns, rows)
    numbers = levels(relative)
    experts = loads.shape[2]
    pictures = [
        _picture(f"MoE layer {layer + 1} of {layers}", numbers[i], axis, experts)
        for i, layer in enumerate(chosen.tolist())
    ]
    return _scale() + f'<div class="grid heat-maps">{"".join(pictures)}</div>'


def _picture(title: str, numbers: np.ndarray, axis: Axis, experts: int) -> str:
    images = "".join(
        f'<image class="only-{theme}" width="1000" height="1000" preserveAspectRatio="none" '
        f'href="{embedded(png(numbers, palette(stops)))}"/>'
        for theme, stops in (("light", _LIGHT), ("dark", _DARK))
    )
    svg = (
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img" '
        f'aria-label="load of {experts} experts over steps, {title}">{images}</svg>'
    )
    # Row 0 is at the top, so expert numbers run downwards.
    labels = x_ticks(axis) + y_ticks(Axis(experts, 0, "expert", whole=True))
    plot = f'<div class="plot heat">{svg}{labels}</div>'
    return figure(title, plot, unit="expert number", x_label="step")


def embedded(picture: bytes) -> str:
    """Returns a PNG as the address of an image."""
    return "data:image/png;base64," + base64.b64encode(picture).decode("ascii")


def _scale() -> str:
    numbers = np.arange(1, _LEVELS + 1, dtype=np.uint8)[None, :]
    images = "".join(
        f'<img class="only-{theme}" alt="" src="{embedded(png(numbers, palette(stops)))}">'
        for theme, stops in (("light", _LIGHT), ("dark", _DARK))
    )
    ends = [math.pow(2, -_OCTAVES), math.pow(2, _OCTAVES)]
    return (
        '<div class="heat-scale"><span>load of an expert, relative to its layer’s mean:</span>'
        f"<span>≤ {ends[0]:g}</span>{images}<span>≥ {ends[1]:g}</span>"
        '<span><i class="key nothing"></i>no token</span></div>'
    )

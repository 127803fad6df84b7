# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The formats: element, block and scale. The order is that of ``src/ops/quantize/format.h``."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Format:
    """Elements share one scale per `block` of them along an axis, or per block x block square."""

    name: str
    element: Any  # dtype of q.data
    scale: Any  # dtype of q.scale
    block: int
    square: bool = False

    @property
    def code(self) -> int:
        """Its number in the engine."""
        return list(FORMATS).index(self.name)

    @property
    def has_tensor_scale(self) -> bool:
        """Whether a second, f32 scale belongs to the whole tensor (NVFP4)."""
        return self.scale == jnp.float8_e4m3fn

    def scale_counts(self, rows: int, columns: int, axis: int) -> tuple[int, int]:
        """Scales of a [rows, columns] matrix, in both directions; axis 0 or 1."""
        along_rows = self.block if self.square or axis == 0 else 1
        along_columns = self.block if self.square or axis == 1 else 1
        return -(-rows // along_rows), -(-columns // along_columns)


FORMATS = {
    f.name: f
    for f in (
        Format("mxfp8_e4m3", jnp.float8_e4m3fn, jnp.float8_e8m0fnu, 32),
        Format("mxfp8_e5m2", jnp.float8_e5m2, jnp.float8_e8m0fnu, 32),
        Format("mxfp4", jnp.float4_e2m1fn, jnp.float8_e8m0fnu, 32),
        Format("nvfp4", jnp.float4_e2m1fn, jnp.float8_e4m3fn, 16),
        Format("nvfp4_16x16", jnp.float4_e2m1fn, jnp.float8_e4m3fn, 16, square=True),
        Format("fp8_block_1x128", jnp.float8_e4m3fn, jnp.float32, 128),
        Format("fp8_block_128x128", jnp.float8_e4m3fn, jnp.float32, 128, square=True),
    )
}
SCALE_MODES = ("rceil", "floor", "even", "ceil", "float32")
ROUNDINGS = ("nearest", "stochastic")
INFINITIES = ("te", "strict")


def check(
    op: str, format: str, scale_mode: str, rounding: str, key: Any, infinity: str
) -> dict[str, Any]:
    """Returns the engine's attributes; ValueError names the option that is wrong."""
    for name, value, known in (
        ("format", format, tuple(FORMATS)),
        ("scale_mode", scale_mode, SCALE_MODES),
        ("rounding", rounding, ROUNDINGS),
        ("infinity", infinity, INFINITIES),
    ):
        if value not in known:
            raise ValueError(f"{op}: {name}={value!r}; must be one of {', '.join(known)}")
    kind = FORMATS[format]
    if kind.has_tensor_scale and scale_mode != "rceil":
        raise ValueError(f"{op}: scale_mode={scale_mode!r} has no meaning for {format}")
    if scale_mode == "float32" and kind.scale != jnp.float32:
        raise ValueError(f"{op}: scale_mode='float32' belongs to fp8_block formats, not {format}")
    if rounding == "stochastic" and key is None:
        raise ValueError(f"{op}: rounding='stochastic' needs a key")
    return {
        "format": kind.code,
        "scale_mode": SCALE_MODES.index(scale_mode),
        "stochastic": rounding == "stochastic",
        "strict": infinity == "strict",
    }

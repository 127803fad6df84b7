# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Suite ``quantize``: into and out of block-scaled formats through JAX, as elements per second and share of a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from anabranch import engine
from anabranch.bench import low_precision
from anabranch.bench.timing import measure
from anabranch.ops.quantize import FORMATS, get_recipe, quantize
from anabranch.ops.quantize.products import round_trip

_ROWS, _COLUMNS = 4096, 4096
# (row name, format, axis, rounding)
_QUANTIZE = (
    ("quantize_mxfp8", "mxfp8_e4m3", -1, "nearest"),
    ("quantize_mxfp8_columns", "mxfp8_e4m3", -2, "nearest"),
    ("quantize_mxfp8_stochastic", "mxfp8_e4m3", -1, "stochastic"),
    ("quantize_fp8_block", "fp8_block_1x128", -1, "nearest"),
    ("quantize_nvfp4", "nvfp4", -1, "nearest"),
)


def rows() -> Iterator[dict[str, Any]]:
    """All rows of the suite: single operations, then what they make of an expert layer and a step."""
    yield from _operations()
    yield from low_precision.layer_rows()
    yield from low_precision.step_rows()


def _operations() -> Iterator[dict[str, Any]]:
    """Rows ``quantize_*`` (f32 to codes), ``dequantize_mxfp8`` (to bf16), ``round_trip_*`` (f32 to bf16)."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(_ROWS, _COLUMNS)), jnp.float32)
    for name, format, axis, rounding in _QUANTIZE:
        q = quantize(x, format, axis=axis, rounding=rounding, key=1)
        run = jax.jit(
            lambda x, f=format, a=axis, r=rounding: quantize(x, f, axis=a, rounding=r, key=1)
        )
        yield _row(name, format, lambda run=run: run(x), 4 + 1, _error(x, q.dequantize(), format))
    q = quantize(x, "mxfp8_e4m3")
    back = jax.jit(lambda q: q.dequantize(jnp.bfloat16))
    yield _row(
        "dequantize_mxfp8", "mxfp8_e4m3", lambda: back(q), 1 + 2, _error(x, back(q), "mxfp8_e4m3")
    )
    sizes, recipe = jnp.full(1, _ROWS, jnp.int32), get_recipe("mxfp8")
    for name, axis in (("round_trip_mxfp8", 1), ("round_trip_mxfp8_columns", 0)):
        trip = jax.jit(lambda x, a=axis: round_trip(x, sizes, "mxfp8_e4m3", a, recipe, False)[0])
        yield _row(name, "mxfp8_e4m3", lambda t=trip: t(x), 4 + 2, _error(x, trip(x), "mxfp8_e4m3"))


def _error(x: jax.Array, values: jax.Array, format: str) -> float:
    """Largest error as a share of amax; RuntimeError if it is more than a step of the element explains."""
    error = float(jnp.max(jnp.abs(values.astype(jnp.float32) - x)) / jnp.max(jnp.abs(x)))
    # A step at the top of the range, relative to it, doubled where stochastic rounding takes all of it;
    # NVFP4's scale adds 1/16 of its own rounding.
    step = {ml_dtypes.float8_e4m3fn: 32 / 448, ml_dtypes.float4_e2m1fn: 2 / 6 + 1 / 16}
    bound = 2 * step[np.dtype(FORMATS[format].element).type]
    if not error <= bound:
        raise RuntimeError(
            f"bench: {format} is wrong: error {error:.3e} of amax exceeds {bound:.3e}"
        )
    return error


def _row(
    name: str, format: str, run: Callable[[], Any], bytes_per_element: int, error: float
) -> dict[str, Any]:
    timing = measure(lambda: jax.block_until_ready(run()))
    elements = _ROWS * _COLUMNS
    return {
        "name": name,
        "shape": {"rows": _ROWS, "columns": _COLUMNS},
        "dtype": format,
        "threads": engine.num_threads(),
        "copied_bytes": float(bytes_per_element * elements),
        "gelements_per_s_per_core": elements / timing.seconds * 1e-9 / engine.num_threads(),
        "max_error": error,
        "timing": timing,
    }

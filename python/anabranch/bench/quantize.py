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
from anabranch.bench.timing import measure, observe
from anabranch.ops.quantize import FORMATS, get_recipe, quantize
from anabranch.ops.quantize.operands import round_trip

_ROWS, _COLUMNS = 4096, 4096
_CACHED_ROWS, _CACHED_COLUMNS = 1024, 64  # codes and the panel fit the second cache level
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
    cached = x[:_CACHED_ROWS, :_CACHED_ROWS]
    run = jax.jit(lambda x: quantize(x, "mxfp8_e4m3"))
    error = _error(cached, run(cached).dequantize(), "mxfp8_e4m3")
    yield _row(
        "quantize_mxfp8_cached", "mxfp8_e4m3", lambda: run(cached), 4 + 1, error, cached.shape
    )
    q = quantize(x, "mxfp8_e4m3")
    back = jax.jit(lambda q: q.dequantize(jnp.bfloat16))
    yield _row(
        "dequantize_mxfp8", "mxfp8_e4m3", lambda: back(q), 1 + 2, _error(x, back(q), "mxfp8_e4m3")
    )
    yield _packing_row()
    sizes, recipe = jnp.full(1, _ROWS, jnp.int32), get_recipe("mxfp8")
    for name, axis in (("round_trip_mxfp8", 1), ("round_trip_mxfp8_columns", 0)):
        trip = jax.jit(lambda x, a=axis: round_trip(x, sizes, "mxfp8_e4m3", a, recipe, False)[0])
        yield _row(name, "mxfp8_e4m3", lambda t=trip: t(x), 4 + 2, _error(x, trip(x), "mxfp8_e4m3"))


def _packing_row() -> dict[str, Any]:
    """Codes in the cache into packed bf16 panels, one thread; RuntimeError unless bits are dequantize's."""
    k, n = _CACHED_ROWS, _CACHED_COLUMNS
    x = jnp.asarray(np.random.default_rng(1).normal(size=(k, n)), jnp.float32)
    q = quantize(x, "mxfp8_e4m3", axis=-2)
    codes, scale = np.asarray(q.data), np.asarray(q.scale)
    values = np.asarray(q.dequantize(jnp.bfloat16)).view(np.uint16).astype(np.uint32)
    words = values[::2] | values[1::2] << 16
    want = words.reshape(k // 2, n // 64, 64).transpose(1, 0, 2)
    panels, _ = engine.time_mxfp8_packing(codes, scale, 100)
    if not (panels == want).all():
        raise RuntimeError("bench: packed codes differ from packed values")
    timing = observe(lambda: engine.time_mxfp8_packing(codes, scale, 2000)[1])
    return {
        "name": "pack_mxfp8",
        "shape": {"rows": k, "columns": n},
        "dtype": "mxfp8_e4m3",
        "threads": 1,
        "copied_bytes": float((1 + 2) * k * n),
        "gelements_per_s_per_core": k * n / timing.seconds * 1e-9,
        "max_error": 0.0,
        "timing": timing,
    }


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
    name: str,
    format: str,
    run: Callable[[], Any],
    bytes_per_element: int,
    error: float,
    shape: tuple[int, ...] = (_ROWS, _COLUMNS),
) -> dict[str, Any]:
    timing = measure(lambda: jax.block_until_ready(run()))
    elements = shape[0] * shape[1]
    return {
        "name": name,
        "shape": {"rows": shape[0], "columns": shape[1]},
        "dtype": format,
        "threads": engine.num_threads(),
        "copied_bytes": float(bytes_per_element * elements),
        "gelements_per_s_per_core": elements / timing.seconds * 1e-9 / engine.num_threads(),
        "max_error": error,
        "timing": timing,
    }

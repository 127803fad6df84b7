# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Suite ``tile``: the microkernel on packed weights, against the multiply-add peak."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from anabranch import _register, engine
from anabranch.bench.timing import observe

# (name, M, N, K): an expert's gate or up product of a DeepSeek-V2-Lite layer.
_SHAPES = (("tile_m64", 64, 1408, 2048), ("tile_m4", 4, 1408, 2048))
_ROUNDS = 200


def rows() -> Iterator[dict[str, Any]]:
    """Rows ``tile_m64`` and ``tile_m4`` (bf16, all threads), then the same on one thread and in f32."""
    for name, m, n, k in _SHAPES:
        yield _row(name, "bfloat16", m, n, k, engine.num_threads())
        yield _row(f"{name}_1_thread", "bfloat16", m, n, k, 1)
        yield _row(f"{name}_f32", "float32", m, n, k, engine.num_threads())


def _row(name: str, dtype: str, m: int, n: int, k: int, threads: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    element = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float32
    a = rng.uniform(-1, 1, (m, k)).astype(element)
    b = rng.uniform(-1, 1, (k, n)).astype(element)
    out = np.empty((m, n), np.float32)
    _time(a, b, out, threads, 5)  # warms the caches
    timing = observe(lambda: _time(a, b, out, threads, _ROUNDS))
    wide = (a.astype(np.float64), b.astype(np.float64))
    error = np.abs(out - wide[0] @ wide[1]).max()
    # K products of magnitude up to 1, each addition rounding the sum by at most eps.
    bound = (k + 1) * np.finfo(np.float32).eps * (np.abs(wide[0]) @ np.abs(wide[1])).max()
    if not error <= bound:
        raise RuntimeError(f"bench: {name} is wrong: max error {error:.3e} exceeds {bound:.3e}")
    shape = {"M": m, "N": n, "K": k}
    return {
        "name": name,
        "shape": shape,
        "dtype": dtype,
        "threads": threads,
        "flops": 2.0 * m * n * k,
        "max_error": float(error),
        "timing": timing,
    }


def _time(a: np.ndarray, b: np.ndarray, out: np.ndarray, threads: int, rounds: int) -> list[float]:
    function = _register.library().anabranch_time_tile_product
    function.restype = None
    seconds = np.empty(rounds, np.float64)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (a, b, out)]
    sizes = (a.shape[0], b.shape[1], a.shape[1], int(a.dtype != np.float32), threads, rounds)
    function(
        *pointers,
        *(ctypes.c_int64(size) for size in sizes),
        ctypes.c_void_p(seconds.ctypes.data),
    )
    return seconds.tolist()

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Ragged products in float64 numpy, with the error bound that an f32 sum of them must keep."""

import dataclasses

import jax.numpy as jnp
import numpy as np

# Largest relative error of one rounding to the dtype.
UNIT = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}


@dataclasses.dataclass(frozen=True)
class Exact:
    """Values of sums of ``terms`` products, and the sums of the products' magnitudes."""

    value: np.ndarray
    magnitude: np.ndarray
    terms: int

    def check(self, actual):
        """Asserts |error| <= (terms + 2) 2^-24 sum |a b|, plus the rounding to actual's dtype."""
        bound = (self.terms + 2) * 2.0**-24 * self.magnitude
        bound = bound + UNIT[actual.dtype.name] * (np.abs(self.value) + bound)
        if actual.dtype == jnp.float16:
            bound = bound + 2.0**-25  # half the spacing of f16 subnormals
        error = np.abs(np.asarray(actual, np.float64) - self.value)
        assert (error <= bound).all(), f"error {(error - bound).max()} above the bound"


def wide(array):
    return np.asarray(array).astype(np.float64)


def forward(x, w, sizes):
    return _rows_times(wide(x), wide(w), sizes)


def dgrad(dy, w, sizes):
    return _rows_times(wide(dy), wide(w).transpose(0, 2, 1), sizes)


def wgrad(x, dy, sizes):
    x, dy, sizes = wide(x), wide(dy), np.asarray(sizes)
    value = np.zeros((len(sizes), x.shape[1], dy.shape[1]))
    magnitude = np.zeros_like(value)
    start = 0
    for g, size in enumerate(sizes):
        rows = slice(start, start + size)
        value[g] = x[rows].T @ dy[rows]
        magnitude[g] = np.abs(x[rows]).T @ np.abs(dy[rows])
        start += size
    return Exact(value, magnitude, int(max(sizes, default=0)))


def _rows_times(x, w, sizes):
    value = np.zeros((x.shape[0], w.shape[2]))
    magnitude = np.zeros_like(value)
    start = 0
    for g, size in enumerate(np.asarray(sizes)):
        rows = slice(start, start + size)
        value[rows] = x[rows] @ w[g]
        magnitude[rows] = np.abs(x[rows]) @ np.abs(w[g])
        start += size
    return Exact(value, magnitude, x.shape[1])

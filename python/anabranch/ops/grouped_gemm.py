# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The three products of a ragged batch of rows with one matrix per group, as JAX functions.

Rows lie in group order; rows past the sum of ``group_sizes`` belong to no group: their results are
zero and they contribute nothing. Each function's gradients are the other two, so any order of
reverse-mode derivative exists. Sums are f32; ``multiplicand`` says in which type operands meet:
``None`` is bf16 if both are bf16, else f32; ``"bfloat16"`` rounds f32 operands to it (a weight
while it is packed, without a copy). ``leaves`` above 1 cuts the rows of each group into that many
equal leaves (a power of two), over which weight gradients are summed by a fixed binary tree.

They check nothing: ``ragged_dot`` and ``linear`` are the public faces.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from anabranch import _register

# The element types that the products take and give; f16 goes through f32.
SERVED_DTYPES = (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def grouped_gemm(
    x: jax.Array,
    w: jax.Array,
    group_sizes: jax.Array,
    dtype: Any,
    multiplicand: str | None = None,
    leaves: int = 1,
) -> jax.Array:
    """Returns y [M, N] in ``dtype``: y[r] = x[r] @ w[group of r]; x [M, K], w [E, K, N]."""
    x, w = _operands(x, w, multiplicand, packs_second=True)
    return _call("grouped_gemm", (x.shape[0], w.shape[2]), dtype, x, w, group_sizes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def grouped_gemm_dgrad(
    dy: jax.Array,
    w: jax.Array,
    group_sizes: jax.Array,
    dtype: Any,
    multiplicand: str | None = None,
    leaves: int = 1,
) -> jax.Array:
    """Returns dx [M, K] in ``dtype``: dx[r] = dy[r] @ w[group of r].T; dy [M, N], w [E, K, N]."""
    dy, w = _operands(dy, w, multiplicand, packs_second=True)
    return _call("grouped_gemm_dgrad", (dy.shape[0], w.shape[1]), dtype, dy, w, group_sizes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def grouped_gemm_wgrad(
    x: jax.Array,
    dy: jax.Array,
    group_sizes: jax.Array,
    dtype: Any,
    multiplicand: str | None = None,
    leaves: int = 1,
) -> jax.Array:
    """Returns dw [E, K, N] in ``dtype``: dw[g] = x_g.T @ dy_g; x [M, K], dy [M, N]."""
    x, dy = _operands(x, dy, multiplicand, packs_second=False)
    return _wgrad(x, dy, group_sizes, jnp.zeros(0, jnp.float32), dtype, leaves)


def grouped_gemm_wgrad_scaled(
    x: jax.Array, dy: jax.Array, group_sizes: jax.Array, scale: jax.Array, leaves: int
) -> jax.Array:
    """`grouped_gemm_wgrad` of bf16 rows in f32, every leaf's sum times its group's scale f32 [E]; no gradient."""
    return _wgrad(x, dy, group_sizes, scale, jnp.float32, leaves)


def _wgrad(
    x: jax.Array, dy: jax.Array, sizes: jax.Array, scale: jax.Array, dtype: Any, leaves: int
) -> jax.Array:
    shape = (sizes.shape[0], x.shape[1], dy.shape[1])
    return _call("grouped_gemm_wgrad", shape, dtype, x, dy, sizes, scale, num_leaves=leaves)


def grouped_gemm_coded(
    x: jax.Array,
    codes: jax.Array,
    group_sizes: jax.Array,
    scale: jax.Array,
    dtype: Any,
    format: int,
    axis: int,
) -> jax.Array:
    """`grouped_gemm` of bf16 x [M, K] with weights in codes [E, K, N], decoded while they are packed.

    codes and scale are what the engine's quantize writes for [E K, N] in E groups: `format` is its
    number, blocks lie along `axis` 0 (K) or 1 (N). Without tensor scales; no gradient.
    """
    shape = (x.shape[0], codes.shape[2])
    attributes = {"format": format, "axis": axis}
    return _call("grouped_gemm_coded", shape, dtype, x, codes, group_sizes, scale, **attributes)


def grouped_gemm_dgrad_coded(
    dy: jax.Array,
    codes: jax.Array,
    group_sizes: jax.Array,
    scale: jax.Array,
    dtype: Any,
    format: int,
    axis: int,
) -> jax.Array:
    """`grouped_gemm_dgrad` of bf16 dy [M, N] with weights as those of `grouped_gemm_coded`."""
    shape = (dy.shape[0], codes.shape[1])
    attributes = {"format": format, "axis": axis}
    operands = (dy, codes, group_sizes, scale)
    return _call("grouped_gemm_dgrad_coded", shape, dtype, *operands, **attributes)


def _operands(
    a: jax.Array, b: jax.Array, multiplicand: str | None, packs_second: bool
) -> tuple[jax.Array, jax.Array]:
    if multiplicand is None:
        both_bf16 = a.dtype == b.dtype == jnp.bfloat16
        multiplicand = "bfloat16" if both_bf16 else "float32"
    if not (packs_second and multiplicand == "bfloat16" and b.dtype == jnp.float32):
        b = b.astype(multiplicand)
    return a.astype(multiplicand), b


def _call(
    target: str, shape: tuple[int, ...], dtype: Any, *operands: jax.Array, **attributes: int
) -> jax.Array:
    computed = jnp.float32 if dtype == jnp.float16 else dtype
    result = jax.ShapeDtypeStruct(shape, computed)
    return _register.call(target, result, *operands, **attributes).astype(dtype)


def _keep(product: Any) -> Any:
    def forward(a: jax.Array, b: jax.Array, group_sizes: jax.Array, *static: Any) -> Any:
        return product(a, b, group_sizes, *static), (a, b, group_sizes)

    return forward


def _grouped_gemm_backward(
    _: Any, multiplicand: str | None, leaves: int, kept: Any, dy: jax.Array
) -> Any:
    x, w, sizes = kept
    dx = grouped_gemm_dgrad(dy, w, sizes, x.dtype, multiplicand, leaves)
    dw = grouped_gemm_wgrad(x, dy, sizes, w.dtype, multiplicand, leaves)
    return dx, dw, None


def _dgrad_backward(
    _: Any, multiplicand: str | None, leaves: int, kept: Any, ddx: jax.Array
) -> Any:
    dy, w, sizes = kept
    ddy = grouped_gemm(ddx, w, sizes, dy.dtype, multiplicand, leaves)
    dw = grouped_gemm_wgrad(ddx, dy, sizes, w.dtype, multiplicand, leaves)
    return ddy, dw, None


def _wgrad_backward(
    _: Any, multiplicand: str | None, leaves: int, kept: Any, ddw: jax.Array
) -> Any:
    x, dy, sizes = kept
    dx = grouped_gemm_dgrad(dy, ddw, sizes, x.dtype, multiplicand, leaves)
    ddy = grouped_gemm(x, ddw, sizes, dy.dtype, multiplicand, leaves)
    return dx, ddy, None


grouped_gemm.defvjp(_keep(grouped_gemm), _grouped_gemm_backward)
grouped_gemm_dgrad.defvjp(_keep(grouped_gemm_dgrad), _dgrad_backward)
grouped_gemm_wgrad.defvjp(_keep(grouped_gemm_wgrad), _wgrad_backward)

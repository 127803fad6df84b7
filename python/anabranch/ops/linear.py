# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""A dense product whose weight may be an f32 master copy."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from anabranch import _register
from anabranch.ops import token_tree
from anabranch.ops.grouped_gemm import SERVED_DTYPES, grouped_gemm
from anabranch.ops.quantize import scope
from anabranch.ops.quantize.products import recipe_gemm
from anabranch.ops.quantize.recipe import Recipe, get_recipe


def linear(
    x: jax.Array,
    w: jax.Array,
    *,
    recipe: str | Recipe | None = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """Returns x @ w over the last dimension of ``x``.

    Where ``x`` is bf16, operands of the product and of both its gradients are bf16 and sums f32: an
    f32 ``w`` is rounded to bf16 inside, and so is the gradient of an f32 result. The gradient of
    ``w`` is an f32 sum in w's dtype, so that f32 master weights need no copy of another type. Other
    mixtures are computed in f32. Gradients exist in reverse mode, of any order; that of ``w`` is
    summed over rows as `anabranch.ops.token_tree` says.

    Args:
      x: f32, bf16 or f16 [..., K].
      w: f32, bf16 or f16 [K, N].
      recipe: None (by the dtype of ``x``), ``"bf16"`` (bf16 operands whatever the dtypes), a low-precision
        recipe (``"mxfp8"``, ``"mxfp8_hybrid"``, ``"fp8_block"``, ``"nvfp4"``) or an ``ab.Recipe``: all three
        products then have its arithmetic, see docs/low-precision.md.
      preferred_element_type: dtype of the result; by default that of ``x``.

    Returns:
      [..., N].

    Raises:
      ValueError: shapes or dtypes do not fit, or the recipe is none of the above.
    """
    low = get_recipe(recipe, "linear")
    x, w = jnp.asarray(x), jnp.asarray(w)
    dtype = jnp.dtype(x.dtype if preferred_element_type is None else preferred_element_type)
    shapes = f"x is {x.dtype.name}{[*x.shape]} and w is {w.dtype.name}{[*w.shape]}"
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise ValueError(f"linear: {shapes}; must be [..., K] and [K, N]")
    if not {x.dtype, w.dtype, dtype}.issubset(SERVED_DTYPES):
        raise ValueError(f"linear: {shapes}, result {dtype.name}; types must be f32, bf16 or f16")
    product = scope.next_product(x.dtype) if recipe is None else low and scope.product_of(low)
    if product is not None:
        return _low_precision(x, w, product, dtype)
    in_bf16 = recipe == "bf16" or x.dtype == jnp.bfloat16
    leaves = token_tree.current().leaves
    return _linear(x, w, dtype, "bfloat16" if in_bf16 else "float32", leaves)


# One dispatch per eager call; an engine error then surfaces as it does under jit.
@functools.partial(jax.jit, static_argnums=(2, 3, 4), inline=True)
def _linear(x: jax.Array, w: jax.Array, dtype: Any, multiplicand: str, leaves: int) -> jax.Array:
    x, w = _register.align(x, w)
    num_rows = math.prod(x.shape[:-1])
    y = grouped_gemm(
        x.reshape(num_rows, x.shape[-1]),
        w[None],
        jnp.full(1, num_rows, jnp.int32),
        dtype,
        multiplicand,
        leaves,
    )
    return y.reshape(*x.shape[:-1], w.shape[1])


def _low_precision(x: jax.Array, w: jax.Array, product: scope.Product, dtype: Any) -> jax.Array:
    x, w, probe, key = _register.align(x, w, product.probe, product.key)
    num_rows = math.prod(x.shape[:-1])
    tree = token_tree.current()
    key = key.at[2].set(tree.rank() * num_rows)  # draws count rows over all ranks
    y = recipe_gemm(
        x.reshape(num_rows, x.shape[-1]),
        w[None],
        jnp.full(1, num_rows, jnp.int32),
        key,
        probe,
        dtype,
        product.recipe,
        tree,
    )
    return y.reshape(*x.shape[:-1], w.shape[1])

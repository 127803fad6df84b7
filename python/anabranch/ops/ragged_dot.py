# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Drop-ins for ``jax.lax.ragged_dot`` and ``jax.lax.ragged_dot_general``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from anabranch.ops.quantize.products import recipe_gemm
from anabranch.ops.quantize.recipe import Recipe, get_recipe
from anabranch.ops.quantize.scope import product_of
from anabranch.ops.ragged_dimensions import ragged_product, serves

_BASIC = jax.lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(([1], [1]), ([], [])),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[0],
)


def ragged_dot(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
    *,
    recipe: str | Recipe | None = None,
) -> jax.Array:
    """Multiplies each group of rows with its own matrix: ``jax.lax.ragged_dot``, faster on CPU.

    Costs 2 M K N operations, where JAX's own CPU lowering costs E times that. Products of bf16 are
    exact and summed in f32 (vdpbf16ps where the CPU has it); all other types meet as f32.
    Gradients exist in reverse mode, of any order; forward mode is that of ``jax.lax.ragged_dot`` under
    ``use_in_jax``.

    Args:
      lhs: [M, K], rows in group order.
      rhs: [E, K, N].
      group_sizes: [E] of an integer type, >= 0, with a sum of at most M. Rows past the sum give
        zeros and no gradient.
      precision: as in ``jax.lax.ragged_dot``; every setting gives the accuracy described above.
      preferred_element_type: dtype of the result, by default JAX's choice.
      group_offset: not supported, as in JAX.
      recipe: None, or a low-precision recipe as for ``anabranch.linear``: the product and both its
        gradients then have its arithmetic, group by group. lhs and rhs are f32 or bf16.

    Returns:
      [M, N]. f32, bf16 and f16, also mixed, are computed here; other dtypes by JAX.

    Raises:
      ValueError: shapes or dtypes do not fit.
      NotImplementedError: ``group_offset`` is given.
      TypeError: under ``jax.jvp`` or ``jax.jacfwd``; JAX's "can't apply forward-mode autodiff (jvp)".
      jax.errors.JaxRuntimeError: a group size is negative, or the sizes add up to more than M. JAX's
        fast path for compiled code makes a ValueError of the same message.
    """
    low = get_recipe(recipe, "ragged_dot")
    given = (precision, preferred_element_type, group_offset)
    if low is None:
        return _general("ragged_dot", lhs, rhs, group_sizes, _BASIC, *given)
    lhs, rhs, sizes = jnp.asarray(lhs), jnp.asarray(rhs), jnp.asarray(group_sizes)
    checked = jax.eval_shape(
        lambda *arrays: _general("ragged_dot", *arrays, _BASIC, *given), lhs, rhs, sizes
    )
    if not {lhs.dtype, rhs.dtype}.issubset({jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)}):
        raise ValueError(
            f"ragged_dot: lhs {lhs.dtype.name} and rhs {rhs.dtype.name}; recipe {low.name} takes "
            "float32 and bfloat16"
        )
    product = product_of(low)
    sizes = sizes.astype(jnp.int32)
    return recipe_gemm(lhs, rhs, sizes, product.key, product.probe, checked.dtype, low)


def ragged_dot_general(
    lhs: jax.Array,
    rhs: jax.Array,
    group_sizes: jax.Array,
    ragged_dot_dimension_numbers: jax.lax.RaggedDotDimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    group_offset: Any = None,
) -> jax.Array:
    """``jax.lax.ragged_dot_general`` with batch, contracting and free dimensions in any order.

    The kind of the ragged dimension of ``lhs`` selects the mode (m free, k contracted, b batch
    dimensions, g groups, x the dimensions outside the ragged one):
      free         [b..., m..., k...], [g, b..., k..., n...], [b..., x..., g] -> [b..., m..., n...]
      contracting  [b..., m..., k...], [b..., k..., n...], [b..., x..., g] -> [g, b..., m..., n...]
      batch        [b..., m..., k...], [b..., k..., n...], [x..., g] -> [b..., m..., n...]
    In batch mode the sizes do not enter the result, as in JAX.

    Args:
      lhs: array of the form above, in the order that the dimension numbers state.
      rhs: likewise.
      group_sizes: of an integer type; [g] stands for the same sizes everywhere.
      ragged_dot_dimension_numbers: a ``jax.lax.RaggedDotDimensionNumbers``.
      precision: see ``ragged_dot``.
      preferred_element_type: dtype of the result, by default JAX's choice.
      group_offset: not supported, as in JAX.

    Returns:
      The array of the form above; dtypes as for ``ragged_dot``.

    Raises:
      ValueError: shapes, dtypes or dimension numbers do not fit.
      NotImplementedError: ``group_offset`` is given.
      jax.errors.JaxRuntimeError: a group size is negative, or sizes add up to more than there is; or
        ValueError, as for ``ragged_dot``.
    """
    return _general(
        "ragged_dot_general",
        lhs,
        rhs,
        group_sizes,
        ragged_dot_dimension_numbers,
        precision,
        preferred_element_type,
        group_offset,
    )


def _general(
    name: str,
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    numbers: Any,
    precision: Any,
    preferred_element_type: Any,
    group_offset: Any,
) -> jax.Array:
    if group_offset is not None:
        raise NotImplementedError(f"{name}: group_offset is not supported, here as in JAX")
    lhs, rhs, group_sizes = (jnp.asarray(array) for array in (lhs, rhs, group_sizes))
    options = {"precision": precision, "preferred_element_type": preferred_element_type}

    def by_jax(lhs: jax.Array, rhs: jax.Array, group_sizes: jax.Array) -> jax.Array:
        return jax.lax.ragged_dot_general(lhs, rhs, group_sizes, numbers, **options)

    arrays = (lhs, rhs, group_sizes)
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    try:
        result = jax.eval_shape(by_jax, *shapes)  # JAX's own rules, also for the result's dtype
    except (TypeError, ValueError) as error:
        names = ("lhs", "rhs", "group_sizes")
        given = [f"{n} {a.dtype.name}{[*a.shape]}" for n, a in zip(names, arrays, strict=True)]
        raise ValueError(f"{name}: {', '.join(given)}: {error}") from error
    if not serves(lhs, rhs, result):
        return by_jax(lhs, rhs, group_sizes)
    return ragged_product(lhs, rhs, group_sizes, numbers, result.dtype)

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Experts' weights in the order in which moe_ffn's products read them."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from anabranch import _register


class PackedExperts(NamedTuple):
    """bf16 panels of E experts' weights, from `pack_experts`; F' and H' are F and H made even.

    Element (k, c) of a panel lies at ``[k // 2, c, k % 2]`` of its last two axes, read as
    ``[k/2, 64, 2]``. All panels together take twice the memory of the weights in bf16.
    """

    gate_up: jax.Array  # [E, ceil(F/32), H', 64], for x @ [w_gate | w_up], 32 columns of each
    down: jax.Array  # [E, ceil(H/64), F', 64], for hidden @ w_down
    down_transposed: jax.Array  # [E, ceil(F/64), H', 64], for the gradient of hidden
    gate_up_transposed: jax.Array  # [E, ceil(H/64), 2F', 64], for the gradient of x


def panel_shapes(num_experts: int, hidden: int, width: int) -> PackedExperts:
    """Returns the shape of each array for w_gate [E, H, F], as a PackedExperts of tuples."""
    even_hidden, even_width = hidden + hidden % 2, width + width % 2
    return PackedExperts(
        (num_experts, -(-width // 32), even_hidden, 64),
        (num_experts, -(-hidden // 64), even_width, 64),
        (num_experts, -(-width // 64), even_hidden, 64),
        (num_experts, -(-hidden // 64), 2 * even_width, 64),
    )


def pack_experts(w_gate: jax.Array, w_up: jax.Array, w_down: jax.Array) -> PackedExperts:
    """Packs experts' weights once for many calls of ``moe_ffn(..., packed=...)``.

    Without panels every call of moe_ffn, and of its gradient, rearranges the weights again. That
    hardly shows where an expert has hundreds of rows and costs a quarter of the time at 48. Panels
    go stale when the weights change: make them once per optimizer step, and use them in every
    microbatch and rematerialised pass of the step.

    Args:
      w_gate: [E, H, F], bf16 or f32 (rounded to the nearest bf16, ties to even).
      w_up: [E, H, F] in the same dtype.
      w_down: [E, F, H] in the same dtype.

    Returns:
      The panels. No gradient flows through them: ``moe_ffn`` gives it to the plain weights.

    Raises:
      ValueError: a shape or dtype does not fit; the message gives all three.
    """
    arrays = (w_gate, w_up, w_down)
    fits = w_gate.ndim == 3 and w_gate.dtype in (jnp.bfloat16, jnp.float32)
    fits = fits and all(w.dtype == w_gate.dtype for w in arrays) and w_up.shape == w_gate.shape
    if not fits or w_down.shape != (w_gate.shape[0], w_gate.shape[2], w_gate.shape[1]):
        text = ", ".join(
            f"{name} {w.dtype}{[*w.shape]}"
            for name, w in zip(("w_gate", "w_up", "w_down"), arrays, strict=True)
        )
        raise ValueError(
            f"pack_experts: {text}; must be [E, H, F], [E, H, F] and [E, F, H], all bf16 or all f32"
        )
    shapes = panel_shapes(*w_gate.shape)
    results = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    arrays = tuple(jax.lax.stop_gradient(w) for w in arrays)
    return PackedExperts(*_register.call("pack_experts", results, *arrays))


def check_panels(packed: PackedExperts, x: jax.Array, w_gate: jax.Array) -> None:
    """Raises ValueError, in moe_ffn's name, unless the panels are those of such weights."""
    if x.dtype != jnp.bfloat16:
        raise ValueError(f"moe_ffn: packed experts are bf16, x is {x.dtype}{[*x.shape]}")
    for name, panels, shape in zip(
        PackedExperts._fields, packed, panel_shapes(*w_gate.shape), strict=True
    ):
        if panels.shape != shape or panels.dtype != jnp.bfloat16:
            raise ValueError(
                f"moe_ffn: packed.{name} {panels.dtype}{[*panels.shape]} must be bfloat16"
                f"{[*shape]} for w_gate {w_gate.dtype}{[*w_gate.shape]}"
            )

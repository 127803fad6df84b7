# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The routed experts of a mixture-of-experts layer, gather and combine fused in."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from anabranch import _register
from anabranch.ops import reference
from anabranch.ops.expert_parallel import ExpertParallel
from anabranch.ops.expert_parallel.moe_ffn_over_ranks import moe_ffn_over_ranks
from anabranch.ops.pack_experts import PackedExperts, check_panels
from anabranch.ops.quantize import experts as low_precision
from anabranch.ops.quantize.recipe import Recipe
from anabranch.ops.ragged_dot import ragged_dot
from anabranch.ops.ragged_plan import RaggedPlan, ragged_plan
from anabranch.ops.router import Routing
from anabranch.ops.rows import combine_rows, gather_rows

ACTIVATIONS = reference.ACTIVATIONS
IMPLEMENTATIONS = (None, "reference", "unfused")


def moe_ffn(
    x: jax.Array,
    routing: Routing,
    w_gate: jax.Array,
    w_up: jax.Array,
    w_down: jax.Array,
    *,
    activation: str = "swiglu",
    recipe: str | Recipe | None = None,
    expert_parallel: ExpertParallel | None = None,
    implementation: str | None = None,
    packed: PackedExperts | None = None,
) -> jax.Array:
    """Sends every token through its k experts and adds up the weighted results; drops nothing.

    ``y[t] = sum over slots s of weights[t, s] * (act(x[t] @ w_gate[e], x[t] @ w_up[e]) @ w_down[e])``
    with ``e = experts[t, s]``. Costs exactly the routed rows; nothing is padded to a capacity and
    nothing of size [T, E] or [E, T, ...] exists.

    Args:
      x: [T, H] bf16 or f32.
      routing: ``experts`` i32 [T, k] (-1 = nowhere: no contribution, no gradient) and ``weights``
        [T, k]; its ``scores`` are not used here.
      w_gate: [E, H, F] in x's dtype; or f32 with x bf16: f32 master weights are then rounded to
        bf16 (nearest even) while they are packed, and their gradients come out in f32.
      w_up: [E, H, F].
      w_down: [E, F, H].
      activation: ``"swiglu"`` silu(g) u (Shazeer 2020, arXiv 2002.05202), ``"geglu"`` gelu(g) u in
        the tanh form, ``"reglu"`` relu(g) u, or ``"clamped_swiglu"`` (GPT-OSS): gate <= 7, up in
        [-7, 7], (up + 1) g sigmoid(1.702 g).
      recipe: None, ``"bf16"``, or a low-precision recipe as for ``anabranch.linear``, expert by expert.
      expert_parallel: None: all experts live on this device. An ``ExpertParallel``, inside
        ``jax.shard_map``: E is then the experts of one rank, ``experts`` are global ids, and y and
        all gradients have the bits that one device with all tokens and experts computes.
      implementation: None (the fused engine), ``"unfused"`` (gather, three ragged products,
        combine) or ``"reference"`` (plain jnp, E times the work).
      packed: ``pack_experts(w_gate, w_up, w_down)``: nothing is packed on the way, results have the
        same bits, and gradients still go to the plain weights. For x in bf16, in the fused engine on
        one device.

    Returns:
      y [T, H] in x's dtype. A slot's weighted row is rounded to that dtype; rows are added in f32 in
      ascending expert order and rounded once. The same bits for any number of threads.

    Raises:
      ValueError: a shape, dtype or option does not fit; the message gives both.
      jax.errors.JaxRuntimeError: an expert id is outside [-1, E) (or ValueError, as for ragged_dot).
    """
    _check(x, routing, w_gate, w_up, w_down)
    _check_options(activation, expert_parallel, implementation)
    products = low_precision.products_of(recipe, x.dtype, "moe_ffn")
    experts, weights = routing[0], routing[1].astype(jnp.float32)
    matrices = (w_gate, w_up, w_down)
    if packed is not None:
        check_panels(packed, x, w_gate)
        if products is not None or expert_parallel is not None or implementation is not None:
            raise ValueError("moe_ffn: packed goes with the bf16 engine on one device alone")
    if implementation == "reference":
        return reference.moe_ffn(x, experts, weights, w_gate, w_up, w_down, activation)
    if expert_parallel is not None:
        given = (expert_parallel, activation, products, x, experts, weights, *matrices)
        return moe_ffn_over_ranks(*given)
    plan = ragged_plan(experts, w_gate.shape[0])
    if products is not None:
        given = (*gather_rows(x, plan, weights), matrices, plan.group_sizes)
        return combine_rows(low_precision.expert_rows(activation, *given, products), plan)
    if implementation == "unfused":
        return _unfused(x, weights, plan, w_gate, w_up, w_down, activation)
    return _moe_ffn(activation, x, weights, *matrices, plan, packed)


def _unfused(
    x: jax.Array,
    weights: jax.Array,
    plan: RaggedPlan,
    w_gate: jax.Array,
    w_up: jax.Array,
    w_down: jax.Array,
    activation: str,
) -> jax.Array:
    w_gate, w_up, w_down = (w.astype(x.dtype) for w in (w_gate, w_up, w_down))
    rows, row_weights = gather_rows(x, plan, weights)
    gate = ragged_dot(rows, w_gate, plan.group_sizes)
    up = ragged_dot(rows, w_up, plan.group_sizes)
    wide = (gate.astype(jnp.float32), up.astype(jnp.float32))
    hidden = reference.gated_activation(activation, *wide).astype(x.dtype)
    out = ragged_dot(hidden, w_down, plan.group_sizes, preferred_element_type=jnp.float32)
    return combine_rows((row_weights[:, None] * out).astype(x.dtype), plan)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _moe_ffn(activation: str, x: jax.Array, *operands: Any) -> jax.Array:
    return _call(activation, x, *operands, save=False)[0]


def _call(activation: str, x: jax.Array, *operands: Any, save: bool) -> list[jax.Array]:
    *floats, plan, packed = operands
    width = floats[1].shape[2]
    saved = width + width % 2 if x.dtype == jnp.bfloat16 else width
    saved_rows = plan.row_token.shape[0] if save else 0
    results = (
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        jax.ShapeDtypeStruct((saved_rows, 2 * saved), x.dtype),
    )
    return _register.call(
        "moe_ffn",
        results,
        x,
        *floats,
        plan.group_offsets,
        plan.row_token,
        plan.slot_row,
        *(() if packed is None else (packed.gate_up, packed.down)),
        activation=ACTIVATIONS.index(activation),
    )


def _forward(activation: str, x: jax.Array, *operands: Any) -> tuple[jax.Array, Any]:
    y, gate_up = _call(activation, x, *operands, save=True)
    return y, (x, *operands, checkpoint_name(gate_up, "expert_gate_up"))


def _backward(activation: str, residuals: Any, y_grad: jax.Array) -> tuple[Any, ...]:
    *floats, plan, packed, gate_up = residuals
    panels = () if packed is None else (packed.down_transposed, packed.gate_up_transposed)
    given = (*floats, plan.group_offsets, plan.row_token, plan.slot_row, gate_up)
    *grads, _ = _register.call(
        "moe_ffn_grad",
        [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (*floats, gate_up)],
        *given,
        y_grad,
        *panels,
        aliases={len(given) - 1: len(floats)},  # the gradient works in what was saved
        activation=ACTIVATIONS.index(activation),
    )
    return (*grads, None, None)  # the plan has integers alone; panels pass no gradient on


_moe_ffn.defvjp(_forward, _backward)


def _check(
    x: jax.Array, routing: Routing, w_gate: jax.Array, w_up: jax.Array, w_down: jax.Array
) -> None:
    def text(array: jax.Array) -> str:
        return f"{array.dtype}{list(array.shape)}"

    experts, weights = routing[0], routing[1]
    if x.ndim != 2 or w_gate.ndim != 3:
        raise ValueError(
            f"moe_ffn: x must be [T, H] and w_gate [E, H, F], got x {text(x)} and w_gate "
            f"{text(w_gate)}"
        )
    num_experts, hidden, width = w_gate.shape
    if x.shape[1] != hidden:
        raise ValueError(f"moe_ffn: x {text(x)} and w_gate {text(w_gate)} differ in H")
    if w_up.shape != w_gate.shape:
        raise ValueError(f"moe_ffn: w_up {text(w_up)} must have the shape of w_gate {text(w_gate)}")
    if w_down.shape != (num_experts, width, hidden):
        raise ValueError(
            f"moe_ffn: w_down {text(w_down)} must be [E, F, H] = {[num_experts, width, hidden]} to "
            f"fit w_gate {text(w_gate)}"
        )
    if experts.ndim != 2 or experts.shape[0] != x.shape[0] or weights.shape != experts.shape:
        raise ValueError(
            f"moe_ffn: routing.experts {text(experts)} and routing.weights {text(weights)} must "
            f"both be [T, k] for x {text(x)}"
        )
    if not jnp.issubdtype(weights.dtype, jnp.floating):
        raise ValueError(f"moe_ffn: routing.weights must be floating, got {text(weights)}")
    allowed = {
        jnp.dtype(jnp.float32): ("float32",),
        jnp.dtype(jnp.bfloat16): ("bfloat16", "float32"),
    }
    for name, weight in (("w_gate", w_gate), ("w_up", w_up), ("w_down", w_down)):
        fits = str(weight.dtype) in allowed.get(x.dtype, ()) and weight.dtype == w_gate.dtype
        if not fits:
            raise ValueError(
                f"moe_ffn: x {text(x)} and {name} {text(weight)}: dtypes must be bf16 or f32 and "
                "equal, or x bf16 with all three weights f32"
            )


def _check_options(activation: str, expert_parallel: Any, implementation: str | None) -> None:
    if activation not in ACTIVATIONS:
        raise ValueError(f"moe_ffn: activation={activation!r}; must be one of {ACTIVATIONS}")
    if expert_parallel is not None and implementation is not None:
        raise ValueError(f"moe_ffn: no implementation={implementation!r} with expert_parallel")
    if not isinstance(expert_parallel, ExpertParallel | None):
        raise ValueError(f"moe_ffn: expert_parallel={expert_parallel!r}; must be an ExpertParallel")
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(
            f"moe_ffn: implementation={implementation!r}; must be one of {IMPLEMENTATIONS}"
        )

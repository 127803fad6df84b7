# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""A layer's routed experts when they are spread over ranks: dispatch, own experts, combine."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax

from anabranch.ops import reference
from anabranch.ops.expert_parallel.calls import Wave, worst_capacity
from anabranch.ops.expert_parallel.group import ExpertParallel
from anabranch.ops.expert_parallel.moe_ffn_rows import moe_ffn_rows
from anabranch.ops.expert_parallel.parts import in_parts
from anabranch.ops.expert_parallel.waves import WaveOptions, moe_ffn_in_waves
from anabranch.ops.quantize import experts as low_precision


def moe_ffn_over_ranks(
    expert_parallel: ExpertParallel,
    activation: str,
    products: Any,
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    *matrices: jax.Array,
) -> jax.Array:
    """``anabranch.moe_ffn`` of checked operands; ``products`` are those of a low-precision recipe, or None."""
    ranks = jax.lax.axis_size(expert_parallel.axis_name)
    local = expert_parallel.local_experts(ranks)
    if matrices[0].shape[0] != local:
        raise ValueError(
            f"moe_ffn: w_gate {list(matrices[0].shape)} must have {local} experts, a rank's "
            f"share of num_experts={expert_parallel.num_experts}"
        )
    if products is None:
        serve = functools.partial(_serve, activation)
        if expert_parallel.chunks > 1:
            return in_parts(expert_parallel, serve, x, experts, weights, *matrices)
        return serve(expert_parallel, x, experts, weights, *matrices)
    if expert_parallel.chunks > 1:
        raise ValueError(
            f"moe_ffn: chunks={expert_parallel.chunks} goes with the plain arithmetic alone: a "
            "low-precision gradient would quantise other blocks of rows"
        )
    plan = expert_parallel.prepare(experts)
    rows, row_weights = expert_parallel.dispatch(plan, x, weights)
    owners = expert_parallel.owners(ranks)
    products = low_precision.on_rank(products, expert_parallel.axis_name, owners)
    given = (rows, row_weights, matrices, plan.group_sizes)
    axis_name = expert_parallel.axis_name
    rows = low_precision.expert_rows(activation, *given, products, axis_name)
    return expert_parallel.combine(plan, rows)


def _serve(
    activation: str,
    expert_parallel: ExpertParallel,
    x: jax.Array,
    experts: jax.Array,
    weights: jax.Array,
    *matrices: jax.Array,
) -> jax.Array:
    plan = expert_parallel.prepare(experts)
    code = reference.ACTIVATIONS.index(activation)
    if expert_parallel.waves > 1:
        options = _wave_options(expert_parallel, x.shape[0], code)
        return moe_ffn_in_waves(options, plan, x, weights, *matrices)
    rows, row_weights = expert_parallel.dispatch(plan, x, weights)
    rows = moe_ffn_rows(code, rows, row_weights, *matrices, plan.group_offsets)
    return expert_parallel.combine(plan, rows)


def _wave_options(expert_parallel: ExpertParallel, tokens: int, activation: int) -> WaveOptions:
    call = expert_parallel.call_options(tokens, weighted=True)
    local, count = expert_parallel.local_experts(call.ranks), expert_parallel.waves
    borders = tuple(local * wave // count for wave in range(count + 1))
    waves = []
    for index, (first, end) in enumerate(itertools.pairwise(borders)):
        worst = worst_capacity(
            tokens * call.ranks, call.topk, end - first, expert_parallel.alignment
        )
        waves.append(Wave(index, count, min(call.capacity, worst)))
    return WaveOptions(call, activation, tuple(waves), borders)

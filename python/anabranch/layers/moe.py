# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""A mixture-of-experts block: router, routed experts, shared experts."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from anabranch.layers.dense_ffn import dense_ffn, dense_ffn_shapes
from anabranch.layers.initializers import initialise
from anabranch.layers.moe_config import MoEConfig
from anabranch.ops import token_tree
from anabranch.ops.balance import load_balancing_loss
from anabranch.ops.linear import linear
from anabranch.ops.moe_ffn import moe_ffn
from anabranch.ops.ragged_plan import ragged_plan
from anabranch.ops.router import topk_router

Params = dict[str, Any]


class MoEAux(NamedTuple):
    """What a block reports beside its output.

    group_sizes i32 [E], the slots routed to each expert; the auxiliary losses are f32 scalars,
    weighted by their coefficients and 0 where those are 0.
    """

    group_sizes: jax.Array
    load_balancing_loss: jax.Array
    router_z_loss: jax.Array


def moe_init(key: jax.Array, config: MoEConfig) -> Params:
    """Returns the parameters of one block, f32, of `moe_shapes`; the selection bias is 0."""
    return initialise(key, moe_shapes(config), config.init_scale)


def moe_shapes(config: MoEConfig) -> dict[str, Any]:
    """Returns the shape of each parameter.

    `router` [H, E]; `expert_bias` [E] when configured; `w_gate`, `w_up` [E, H, F], `w_down`
    [E, F, H]; `shared`, a dense FFN of num_shared_experts * F, when there are shared experts.
    """
    hidden, width, experts = config.hidden_size, config.expert_width, config.num_experts
    shapes: dict[str, Any] = {
        "router": (hidden, experts),
        "w_gate": (experts, hidden, width),
        "w_up": (experts, hidden, width),
        "w_down": (experts, width, hidden),
    }
    if config.expert_bias:
        shapes["expert_bias"] = (experts,)
    if config.num_shared_experts:
        shapes["shared"] = dense_ffn_shapes(hidden, config.num_shared_experts * width)
    return shapes


def moe(params: Params, x: jax.Array, config: MoEConfig) -> jax.Array:
    """Returns `shared(x) + scaling_factor * sum_k w_k expert_k(x)` [..., H] in x's type.

    x [..., H] bf16 or f32: the products are in x's type, the router in f32. Differentiable in
    params and x; `expert_bias` receives no gradient. Raises ValueError when x's last axis is not
    `config.hidden_size`.
    """
    return moe_with_aux(params, x, config)[0]


def moe_with_aux(
    params: Params,
    x: jax.Array,
    config: MoEConfig,
    *,
    token_mask: jax.Array | None = None,
    expert_parallel: Any = None,
) -> tuple[jax.Array, MoEAux]:
    """Returns `moe(params, x, config)` and what the block reports.

    Tokens where `token_mask` (bool, x's leading axes) is false are routed nowhere: they cost no
    expert work, count in no load and no auxiliary loss, and get the shared experts' output alone.
    With `expert_parallel` (see `anabranch.moe_ffn`) `w_gate`, `w_up` and `w_down` are this rank's part.
    What is reported is of the tokens of all ranks, see `anabranch.ops.token_tree`.
    """
    if x.shape[-1] != config.hidden_size:
        raise ValueError(f"moe: x has shape {x.shape}; must be [..., {config.hidden_size}]")
    flat = x.reshape(-1, config.hidden_size)
    mask = None if token_mask is None else token_mask.reshape(-1)
    with jax.named_scope("router"):
        logits = linear(flat.astype(jnp.float32), params["router"])
        routing = _route(logits, params.get("expert_bias"), config)
        if mask is not None:
            routing = routing._replace(experts=jnp.where(mask[:, None], routing.experts, -1))
        aux = _report(logits, routing.experts, routing.scores, config, mask)
    with jax.named_scope("experts"):
        weights = (params["w_gate"], params["w_up"], params["w_down"])
        y = moe_ffn(flat, routing, *weights, expert_parallel=expert_parallel)
    if config.num_shared_experts:
        y = y + dense_ffn(params["shared"], flat)
    return y.reshape(x.shape), aux


def _route(logits: jax.Array, bias: jax.Array | None, config: MoEConfig) -> Any:
    score = config.group_score
    return topk_router(
        logits,
        config.topk,
        score_function=config.score_function,
        expert_bias=None if bias is None else jax.lax.stop_gradient(bias),
        num_groups=config.num_groups,
        group_topk=config.group_topk,
        group_score=int(score) if score.isdigit() else score,
        normalize=config.normalize,
        scaling_factor=config.scaling_factor,
    )


def _report(
    logits: jax.Array,
    experts: jax.Array,
    scores: jax.Array,
    config: MoEConfig,
    mask: jax.Array | None,
) -> MoEAux:
    sizes = ragged_plan(experts, config.num_experts).group_sizes
    balance = z_loss = jnp.zeros((), jnp.float32)
    if config.load_balancing_coeff:
        balance = load_balancing_loss(
            scores, experts, config.num_experts, config.load_balancing_coeff, group_sizes=sizes
        )
    if config.router_z_coeff:
        squares = jax.nn.logsumexp(logits, axis=-1) ** 2
        weights = jnp.ones_like(squares) if mask is None else mask.astype(squares.dtype)
        total = token_tree.sum_over_ranks(token_tree.sum_over_tokens(squares * weights))
        count = token_tree.count_over_ranks(jnp.sum(weights))
        z_loss = config.router_z_coeff * total / jnp.maximum(count, 1.0)
    return MoEAux(token_tree.count_over_ranks(sizes), balance, z_loss)

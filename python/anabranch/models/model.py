# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The decoder: parameters, forward pass and loss as pure functions."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from anabranch.layers.dense_ffn import dense_ffn, dense_ffn_shapes
from anabranch.layers.gqa import gqa, gqa_shapes
from anabranch.layers.initializers import initialise
from anabranch.layers.mla import mla, mla_shapes
from anabranch.layers.moe import MoEAux, moe_shapes, moe_with_aux
from anabranch.layers.norm import add_rms_norm, rms_norm
from anabranch.layers.rotary import rotary_table
from anabranch.models.config import Config
from anabranch.ops import token_tree
from anabranch.ops.balance import update_expert_bias as _moved_bias
from anabranch.ops.linear import linear
from anabranch.ops.linear_cross_entropy import linear_cross_entropy
from anabranch.ops.quantize import scope as low_precision
from anabranch.ops.remat import remat

Params = dict[str, Any]
Batch = dict[str, jax.Array]

# What `remat` keeps of a block beside its inputs; everything else is computed a second time. "selective"
# keeps what costs most to compute: the products of attention and of the experts.
KEPT_BY_REMAT = {
    "selective": jax.checkpoint_policies.save_only_these_names(
        "attention_output", "attention_log_sum_exp", "expert_gate_up"
    ),
    "full": None,
}


def init(key: jax.Array, config: Config) -> Params:
    """Returns new parameters, f32: normal with `init_scale`, norms 1, selection biases 0.

    The layout is documented in docs/parameters.md.
    """
    shapes: Params = {
        "embedding": (config.vocab_size, config.hidden_size),
        "final_norm": (config.hidden_size,),
        "layers": [_layer_shapes(index, config) for index in range(config.num_layers)],
    }
    if not config.tie_embeddings:
        shapes["head"] = (config.hidden_size, config.vocab_size)
    return initialise(key, shapes, config.init_scale)


def loss(
    params: Params,
    batch: Batch,
    config: Config,
    *,
    num_labels: jax.Array | None = None,
    auxiliary_scale: float = 1.0,
    expert_parallel: Any = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns (loss, aux): nats per label plus auxiliary losses, and what the step reports.

    `batch` holds i32 [B, S] `tokens`, `labels` (-1 ignored) and optionally `segment_ids` (0 is
    padding: routed nowhere) and `positions`. The loss is the sum over labels divided by
    `num_labels`, by default their number in this batch; a batch without labels has loss 0. A part of
    a larger batch passes the whole batch's number and its own share as `auxiliary_scale`, so that
    the parts' losses and gradients add up to the whole's.

    Inside `anabranch.ops.token_tree.scope` with axes, each rank passes its own sequences, all parameters
    but its part alone of those that `is_expert` names, and `expert_parallel` (see
    `anabranch.moe_ffn`). Loss and aux are then those of all ranks' sequences together, and so are
    gradients.

    aux: `group_sizes` i32 [MoE layers, E]; f32 scalars `cross_entropy` (nats per label),
    `load_balancing_loss` and `router_z_loss` (means over the MoE layers, included in the loss);
    `num_labels` i32, the labels of this batch.
    """
    params = _shared(params, expert_parallel)
    hidden, reports = _forward(params, batch["tokens"], config, batch, expert_parallel)
    labels = batch["labels"].reshape(-1)
    flat = hidden.reshape(-1, config.hidden_size)
    losses = linear_cross_entropy(flat, _head(params), labels, z_loss=config.z_loss)
    own_labels = token_tree.count_over_ranks(jnp.sum(labels != -1, dtype=jnp.int32))
    divisor = own_labels if num_labels is None else num_labels
    total = token_tree.sum_over_ranks(token_tree.sum_over_tokens(losses))
    cross_entropy = total / jnp.maximum(divisor, 1).astype(jnp.float32)
    balance = _mean([report.load_balancing_loss for report in reports]) * auxiliary_scale
    z_loss = _mean([report.router_z_loss for report in reports]) * auxiliary_scale
    aux = {
        "group_sizes": _stacked_sizes(reports, config),
        "cross_entropy": cross_entropy,
        "load_balancing_loss": balance,
        "router_z_loss": z_loss,
        "num_labels": own_labels,
    }
    return cross_entropy + balance + z_loss, aux


def logits(
    params: Params,
    tokens: jax.Array,
    config: Config,
    *,
    segment_ids: jax.Array | None = None,
    positions: jax.Array | None = None,
) -> jax.Array:
    """Returns the scores of the next token at every position, f32 [B, S, V]; tokens i32 [B, S]."""
    given = {"segment_ids": segment_ids, "positions": positions}
    batch = {name: value for name, value in given.items() if value is not None}
    hidden, _ = _forward(params, tokens, config, batch)
    return linear(hidden, _head(params), preferred_element_type=jnp.float32)


def update_expert_bias(params: Params, group_sizes: jax.Array, config: Config) -> Params:
    """Returns params with every selection bias moved against its expert's load.

    `group_sizes` i32 [MoE layers, E] are the counts of the whole global batch. Does nothing when
    the model has no selection biases.
    """
    if not config.expert_bias or not config.num_moe_layers:
        return params
    layers = list(params["layers"])
    first = config.num_layers - config.num_moe_layers
    for index, sizes in enumerate(group_sizes):
        layer = layers[first + index]
        bias = _moved_bias(layer["moe"]["expert_bias"], sizes, config.expert_bias_rate)
        layers[first + index] = layer | {"moe": layer["moe"] | {"expert_bias": bias}}
    return params | {"layers": layers}


def is_decayed(path: Any, leaf: Any) -> bool:
    """True where weight decay applies: every matrix, so neither norms nor biases.

    For `jax.tree_util.tree_map_with_path(is_decayed, params)`.
    """
    del path
    return leaf.ndim >= 2


def is_expert(path: Any) -> bool:
    """True for the key path of a parameter that holds one matrix for each routed expert."""
    names = [str(getattr(key, "key", key)) for key in path]
    return "moe" in names and names[-1] in ("w_gate", "w_up", "w_down") and "shared" not in names


def _shared(params: Params, expert_parallel: Any) -> Params:
    """The same parameters, with gradients summed over the ranks that hold copies of them.

    Not so the embedding, whose two uses sum theirs themselves, and the selection bias, which has none.
    """

    def leaf(path: Any, value: jax.Array) -> jax.Array:
        name = str(getattr(path[-1], "key", path[-1]))
        if name in ("embedding", "expert_bias"):
            return value
        held_apart = expert_parallel is not None and is_expert(path)
        return token_tree.replicated(
            value, besides=expert_parallel.axis_name if held_apart else None
        )

    return jax.tree_util.tree_map_with_path(leaf, params)


def _layer_shapes(index: int, config: Config) -> Params:
    hidden = config.hidden_size
    attention_shapes = mla_shapes if config.attention.kind == "mla" else gqa_shapes
    layer: Params = {
        "attention": attention_shapes(hidden, config.attention),
        "attention_norm": (hidden,),
        "ffn_norm": (hidden,),
    }
    if index < config.num_dense_layers:
        return layer | {"ffn": dense_ffn_shapes(hidden, config.dense_width)}
    return layer | {"moe": moe_shapes(config.moe)}


def _forward(
    params: Params, tokens: jax.Array, config: Config, batch: Batch, expert_parallel: Any = None
) -> tuple[jax.Array, list[MoEAux]]:
    """The normalised output of the last block, [B, S, H] in the compute type, and the reports."""
    segment_ids = batch.get("segment_ids")
    positions = batch.get("positions")
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    # A loop over sequences, because XLA fuses nothing into it: it would compute the sines and cosines
    # anew for every head of every layer.
    table = jax.lax.map(
        lambda row: rotary_table(row, config.attention.rotary_size, config.rotary), positions
    )
    run = functools.partial(_layer, config, expert_parallel)
    if config.remat != "none":
        run = remat(run, KEPT_BY_REMAT[config.remat])
    with jax.named_scope("embed"):
        x = token_tree.look_up(params["embedding"], tokens)
    # A block hands on its output beside the stream: the next normalisation adds them.
    reports, branch = [], None
    for index, layer in enumerate(params["layers"]):
        with jax.named_scope(f"layer_{index}"), low_precision.layer(index):
            x, branch, report = run(layer, x, branch, table, segment_ids)
        if report is not None:
            reports.append(report)
    return _normed(x, branch, params["final_norm"], config)[1], reports


def _normed(
    x: jax.Array, branch: jax.Array | None, weight: jax.Array, config: Config
) -> tuple[jax.Array, jax.Array]:
    """The stream with `branch` added, and what enters the next block."""
    if branch is None:
        return x, rms_norm(x, weight, config.norm_epsilon, config.dtype)
    return add_rms_norm(x, branch.astype(config.dtype), weight, config.norm_epsilon)


def _layer(
    config: Config,
    expert_parallel: Any,
    layer: Params,
    x: jax.Array,
    branch: jax.Array | None,
    table: tuple[jax.Array, jax.Array],
    segment_ids: jax.Array | None,
) -> tuple[jax.Array, jax.Array, MoEAux | None]:
    block = mla if config.attention.kind == "mla" else gqa
    x, normed = _normed(x, branch, layer["attention_norm"], config)
    mixed = block(
        layer["attention"],
        normed,
        config.attention,
        rotary=config.rotary,
        table=table,
        segment_ids=segment_ids,
        epsilon=config.norm_epsilon,
    )
    x, normed = _normed(x, mixed, layer["ffn_norm"], config)
    if "ffn" in layer:
        return x, dense_ffn(layer["ffn"], normed), None
    mask = None if segment_ids is None else segment_ids != 0
    y, report = moe_with_aux(
        layer["moe"], normed, config.moe, token_mask=mask, expert_parallel=expert_parallel
    )
    return x, y, report


def _head(params: Params) -> jax.Array:
    return params["head"] if "head" in params else token_tree.replicated(params["embedding"]).T


def _mean(values: list[jax.Array]) -> jax.Array:
    return sum(values, jnp.zeros((), jnp.float32)) / max(len(values), 1)


def _stacked_sizes(reports: list[MoEAux], config: Config) -> jax.Array:
    if not reports:
        return jnp.zeros((0, config.num_experts), jnp.int32)
    return jnp.stack([report.group_sizes for report in reports])

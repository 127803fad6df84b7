# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Parameters and floating-point operations of a model, from its configuration alone."""

from __future__ import annotations

from typing import NamedTuple

from anabranch.models.config import Config

# One training step is a forward pass and a backward pass of twice its products.
_TRAINING_PASSES = 3


class Counts(NamedTuple):
    """Numbers of parameters.

    `total` counts every parameter once, selection biases included; `active` those one token uses,
    its whole look-up table included; `embedding` the look-up table alone, which costs no product.
    """

    total: int
    active: int
    embedding: int


def count_parameters(config: Config) -> Counts:
    """Returns the parameter counts of `config`."""
    hidden = config.hidden_size
    embedding = config.vocab_size * hidden
    head = 0 if config.tie_embeddings else embedding
    per_block = _attention_parameters(config) + 2 * hidden
    dense_layers = config.num_layers - config.num_moe_layers
    shared = embedding + head + hidden + config.num_layers * per_block
    shared += dense_layers * 3 * hidden * config.dense_width
    shared += config.num_moe_layers * _moe_parameters_of_every_token(config)
    expert = 3 * hidden * config.expert_width
    total = shared + config.num_moe_layers * config.num_experts * expert
    active = shared + config.num_moe_layers * config.topk * expert
    return Counts(total=total, active=active, embedding=embedding)


def flops_per_token(config: Config, sequence_length: int) -> float:
    """Returns the FLOPs of training on one token, forward and backward.

    Forward: 2 per active parameter that takes part in a product (the look-up does not, the head
    does once, tied or not) and causal attention over half of `sequence_length` positions on average.
    The backward pass is twice that. Recomputation is not counted: these are model FLOPs.
    """
    counts = count_parameters(config)
    head_of_tied = counts.embedding if config.tie_embeddings else 0
    products = 2 * (counts.active - counts.embedding + head_of_tied)
    attention = config.attention
    per_position = 2 * attention.num_heads * (attention.query_key_size + attention.value_size)
    core = config.num_layers * per_position * sequence_length / 2
    return float(_TRAINING_PASSES * (products + core))


def _attention_parameters(config: Config) -> int:
    hidden, shape = config.hidden_size, config.attention
    if shape.kind == "gqa":
        query, key = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
        norms = {"none": 0, "head": 2 * shape.head_size, "full": query + key}[shape.qk_norm]
        return 2 * hidden * query + 2 * hidden * key + norms
    query = shape.num_heads * shape.query_key_size
    rank = shape.q_lora_rank
    query_side = hidden * rank + rank + rank * query if rank else hidden * query
    latent = hidden * (shape.kv_lora_rank + shape.rope_head_size) + shape.kv_lora_rank
    expanded = shape.num_heads * (shape.nope_head_size + shape.value_head_size)
    output = shape.num_heads * shape.value_head_size * hidden
    return query_side + latent + shape.kv_lora_rank * expanded + output


def _moe_parameters_of_every_token(config: Config) -> int:
    router = config.hidden_size * config.num_experts
    bias = config.num_experts if config.expert_bias else 0
    shared = 3 * config.hidden_size * config.expert_width * config.num_shared_experts
    return router + bias + shared

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The model that is planned for: a trainer's recipe, by name or file, with changes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from anabranch import models, recipes
from anabranch.errors import UsageError
from anabranch.models import Config

# Short names that people use. Everything else is the recipe's own name.
ALIASES = {
    "dsv3": "deepseek-v3-671b",
    "deepseek-v3": "deepseek-v3-671b",
    "deepseek3-671b": "deepseek-v3-671b",
    "dsv2-lite": "deepseek-v2-lite",
    "mixtral": "mixtral-8x7b",
    "qwen3-30b": "qwen3-30b-a3b",
    "qwen3-235b": "qwen3-235b-a22b",
    "olmoe": "olmoe-1b-7b",
    "kimi": "kimi-k2",
}


def get(text: str) -> recipes.Recipe:
    """Returns the recipe that `text` names: NAME or FILE, then `:path=value` for each change.

    FILE is JSON as `anabranch recipes NAME --json` or a run's `config.json` has it. Changes are the
    trainer's `--set` paths, as "deepseek-v3-671b:model.num_layers=4:model.num_dense_layers=1".
    """
    name, *changes = text.replace(";", ":").split(":")
    path = Path(name)
    if name.endswith(".json"):
        if not path.is_file():
            raise UsageError(f"--model {name}: no such file")
        recipe = recipes.from_json(path.read_text(encoding="utf-8"))
    else:
        key = name.lower().replace("_", "-")
        try:
            recipe = recipes.get(ALIASES.get(key, key))
        except UsageError as error:
            raise UsageError(f"--model {name}: {error}") from error
    try:
        return recipes.override(recipe, changes) if changes else recipe
    except UsageError as error:
        raise UsageError(str(error).replace("--set", f"--model {name}:", 1)) from error


def flops_per_token(
    config: Config, sequence_length: int, *, mtp_layers: int = 0, causal: bool = True
) -> float:
    """FLOPs to train on one token, as `models.flops_per_token` counts them.

    `mtp_layers` adds DeepSeek-V3's multi-token prediction blocks: an expert block, the projection of
    two hidden states to one, and the head once more. `causal=False` counts attention over all
    positions, as some reports do.
    """
    total = models.flops_per_token(config, sequence_length)
    if mtp_layers:
        more = dataclasses.replace(config, num_layers=config.num_layers + 1)
        block = models.flops_per_token(more, sequence_length) - total
        hidden = config.hidden_size
        total += mtp_layers * (block + 6 * hidden * (2 * hidden + config.vocab_size))
    if not causal:
        shape = config.attention
        per_position = 2 * shape.num_heads * (shape.query_key_size + shape.value_size)
        layers = config.num_layers + mtp_layers
        total += 3 * layers * per_position * sequence_length / 2
    return total


def fields(config: Config, mtp_layers: int) -> dict[str, float]:
    """The model under the engine's names."""
    shape = config.attention
    mla = shape.kind == "mla"
    return {
        "vocabulary": config.vocab_size,
        "hidden": config.hidden_size,
        "layers": config.num_layers,
        "dense_layers": config.num_layers - config.num_moe_layers,
        "dense_width": config.dense_width if config.num_layers > config.num_moe_layers else 0,
        "experts": config.num_experts,
        "topk": config.topk,
        "expert_width": config.expert_width,
        "shared_experts": config.num_shared_experts,
        "groups": config.num_groups,
        "group_topk": config.group_topk,
        "mla": int(mla),
        "heads": shape.num_heads,
        "kv_heads": shape.num_kv_heads,
        "head_size": shape.head_size,
        "q_rank": shape.q_lora_rank if mla else 0,
        "kv_rank": shape.kv_lora_rank if mla else 0,
        "nope_size": shape.nope_head_size if mla else 0,
        "rope_size": shape.rope_head_size if mla else 0,
        "value_size": shape.value_head_size if mla else 0,
        "qk_norm": int(shape.qk_norm != "none" and not mla),
        "tied": int(config.tie_embeddings),
        "mtp_layers": mtp_layers,
    }

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Low precision in the training step: recipes and keys of the layers, and what the metrics say."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from anabranch.ops.quantize import scope
from anabranch.ops.quantize.keys import derive_key
from anabranch.ops.quantize.operands import STATISTICS
from anabranch.ops.quantize.products import OPERANDS

if TYPE_CHECKING:
    from anabranch.models.config import Config
    from anabranch.recipes.recipe import Recipe


def layer_recipes(recipe: Recipe) -> tuple[Any, ...]:
    """The product recipe of each layer; empty when every layer is bf16."""
    layers = recipe.precision.layers(recipe.model.num_layers)
    return layers if any(layers) else ()


def probes(recipe: Recipe) -> jax.Array:
    """What the objective is differentiated by to get the statistics of quantised operands."""
    return scope.new_probes(len(layer_recipes(recipe)))


def step_scope(
    recipe: Recipe, given: jax.Array, step: Any, microbatch: Any
) -> contextlib.AbstractContextManager[None]:
    """The layers traced inside follow `recipe`; stochastic keys follow (seed, step, microbatch)."""
    layers = layer_recipes(recipe)
    if not layers:
        return contextlib.nullcontext()
    return scope.run(layers, derive_key(recipe.train.seed, step, microbatch), given)


def product_names(config: Config) -> list[list[str]]:
    """The weights of each layer's products, by their paths in the parameters, in the order of the products."""
    attention = ["q", "k", "v", "o"]
    if config.attention.kind == "mla":
        queries = ["q_a", "q_b"] if config.attention.q_lora_rank else ["q"]
        attention = [*queries, "kv_a", "kv_b", "o"]
    gated = ("w_gate", "w_up", "w_down")
    dense = [f"ffn.{name}" for name in gated]
    routed = [f"moe.{name}" for name in gated]
    if config.num_shared_experts:
        routed += [f"moe.shared.{name}" for name in gated]
    attention = [f"attention.{name}" for name in attention]
    return [
        attention + (dense if index < config.num_dense_layers else routed)
        for index in range(config.num_layers)
    ]


def summary(statistics: np.ndarray, names: list[list[str]]) -> dict[str, Any]:
    """Metrics of one step from f32 [layers, products, 6, 5]; empty without quantised layers.

    `saturated_share` and `flushed_share` are over all quantised elements: clipped to the largest element, and
    turned from a number into 0. `quantized` has them, and the signal-to-noise ratio in dB, per operand
    (`operands` names them) of each product of each layer, called by `product_names`; null where an operand
    is not quantised or has no noise.
    """
    sums = np.asarray(statistics, np.float64)
    if not sums.size or not sums[..., 0].any():
        return {}
    total = dict(zip(STATISTICS, sums.reshape(-1, len(STATISTICS)).sum(0), strict=True))
    layers = []
    for layer, products in enumerate(sums):
        used = [
            {"name": name, **_operands(product)}
            for name, product in zip(names[layer], products, strict=False)
            if product[:, 0].any()
        ]
        if used:
            layers.append({"layer": layer, "products": used})
    return {
        "saturated_share": total["saturated"] / total["elements"],
        "flushed_share": total["flushed"] / total["elements"],
        "quantized": {"operands": list(OPERANDS), "layers": layers},
    }


def _operands(product: np.ndarray) -> dict[str, list[Any]]:
    elements, saturated, flushed, signal, noise = product.T
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = saturated / elements, flushed / elements
        decibel = 10 * np.log10(signal / noise)
    return {
        "saturated_share": [float(f"{x:.4g}") if np.isfinite(x) else None for x in shares[0]],
        "flushed_share": [float(f"{x:.4g}") if np.isfinite(x) else None for x in shares[1]],
        "sqnr_db": [round(float(x), 2) if np.isfinite(x) else None for x in decibel],
    }

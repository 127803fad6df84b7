# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Runs stock MaxText's expert-parallel layer on the engine and compares it with MaxText's dense one.

`PEERS/maxtext/bin/python bench/peers/maxtext_expert_parallel.py`, with `anabranch` on the path. JAX itself cannot run
`ragged_all_to_all` on CPU: under `use_in_jax` it, its gradients and `ragged_dot` are the engine's. The yardstick is the
same layer with one dense product for every expert, its weights split over four devices. Exit code 1 beyond rounding.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {
    "DECOUPLE_GCLOUD": "TRUE",
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
}

import flax.linen as nn
import jax
import jax.numpy as jnp
import maxtext
import numpy as np
from flax import nnx
from maxtext.configs import pyconfig
from maxtext.layers import moe
from maxtext.layers.initializers import nd_dense_init
from maxtext.utils import maxtext_utils

import anabranch as ab

RANKS, TOKENS, HIDDEN, WIDTH, EXPERTS = 4, 32, 32, 48, 8
SETTINGS = {
    "run_name": "expert_parallel",
    "base_output_directory": "unused",
    "enable_checkpointing": "false",
    "skip_jax_distributed_system": "true",
    "hardware": "cpu",
    "dataset_type": "synthetic",
    "decoder_block": "mixtral",
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "base_emb_dim": HIDDEN,
    "base_mlp_dim": WIDTH,
    "base_moe_mlp_dim": WIDTH,
    "base_num_decoder_layers": 1,
    "vocab_size": 64,
    "base_num_query_heads": 2,
    "base_num_kv_heads": 2,
    "head_dim": 16,
    "max_target_length": TOKENS,
    "per_device_batch_size": 1,
    "dtype": "float32",
    "weight_dtype": "float32",
    "matmul_precision": "highest",
    "attention": "dot_product",
    "use_tokamax_gmm": "false",
    "megablox": "false",
}
DENSE = {"sparse_matmul": "false", "ici_fsdp_parallelism": RANKS}
EXPERT_PARALLEL = {
    "sparse_matmul": "true",
    "ici_fsdp_parallelism": 1,
    "ici_expert_parallelism": RANKS,
}
# f32 sums of at most TOKENS * RANKS + HIDDEN terms, in another order, beside the largest element.
BOUND = (TOKENS * RANKS + HIDDEN) * 2.0**-24


def run(
    options: dict[str, Any], skewed: bool, x: jax.Array, y_grad: jax.Array
) -> tuple[int, list[np.ndarray]]:
    """Exchanges in the compiled program that are the engine's; y, and the gradients of x and of the parameters."""
    base = Path(maxtext.__path__[0]) / "configs" / "base.yml"
    settings = (f"{key}={value}" for key, value in (SETTINGS | options).items())
    config = pyconfig.initialize(["maxtext", str(base), *settings])
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    with mesh, nn.logical_axis_rules(config.logical_axis_rules):
        layer = moe.RoutedMoE(
            config=config, num_experts=EXPERTS, num_experts_per_tok=2, mesh=mesh,
            kernel_init=nd_dense_init(1.0, "fan_in", "truncated_normal"), kernel_axes=("embed", "mlp"),
            intermediate_dim=WIDTH, rngs=nnx.Rngs(params=0),
        )  # fmt: skip
        graph, params, rest = nnx.split(layer, nnx.Param, ...)
        if skewed:  # nearly every token to the two experts of the first rank
            kernel = params["gate"]["kernel"]
            towards = 5 * jnp.sign(x.mean((0, 1)))[:, None]
            kernel.set_value(kernel.get_value().at[:, :2].add(towards))

        def both_ways(params: Any, x: jax.Array) -> Any:
            y, pullback = jax.vjp(lambda p, x: nnx.merge(graph, p, rest)(x)[0], params, x)
            return y, *pullback(y_grad)

        step = jax.jit(both_ways)
        exchanges = step.lower(params, x).as_text().count("anabranch_ragged_all_to_all")
        y, by_params, by_x = step(params, x)
    return exchanges, [np.asarray(array) for array in (y, by_x, *jax.tree.leaves(by_params))]


def main() -> int:
    """Compares both routings; 0 when everything agrees."""
    rng = np.random.default_rng(0)
    x, y_grad = (
        jnp.asarray(rng.normal(size=(RANKS, TOKENS, HIDDEN)), jnp.float32) for _ in range(2)
    )
    print(f"MaxText {maxtext.__version__}, jax {jax.__version__}, {RANKS} devices")
    good = True
    for skewed in (False, True):
        _, expected = run(DENSE, skewed, x, y_grad)
        with ab.use_in_jax():
            exchanges, actual = run(EXPERT_PARALLEL, skewed, x, y_grad)
        errors = [
            float(np.abs(have - want).max() / np.abs(want).max())
            for have, want in zip(actual, expected, strict=True)
        ]
        good = good and exchanges > 0 and max(errors) <= BOUND
        print(f"{'skewed' if skewed else 'spread'}: {exchanges} exchanges, largest errors", *errors)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

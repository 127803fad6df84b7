# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Runs our own step, or our routed layer alone, on the job: `anabranch_worker.py JOB RESULT`."""

from __future__ import annotations

import dataclasses
from typing import Any

import ffn_inputs
import jax
import jax.numpy as jnp
import numpy as np
import probe

import anabranch as ab
from anabranch import engine, models, recipes
from anabranch.train import machine
from anabranch.train.step import init_state, jit_step, keep_gradients, make_train_step


def describe() -> dict[str, Any]:
    """The yardstick model as the other peers' settings need it, from the recipe `bench-190m`."""
    recipe = recipes.get("bench-190m")
    model = recipe.model
    fields = (
        "hidden_size num_layers num_dense_layers dense_width expert_width num_experts topk "
        "num_shared_experts vocab_size scaling_factor norm_epsilon init_scale"
    )
    attention = "num_heads q_lora_rank kv_lora_rank nope_head_size rope_head_size value_head_size"
    shape = {name: getattr(model, name) for name in fields.split()}
    shape |= {name: getattr(model.attention, name) for name in attention.split()}
    length = recipe.train.sequence_length
    # Attention over all positions and over the half that a causal mask leaves.
    half = models.flops_per_token(model, length)
    return {
        "model": shape,
        "sequence_length": length,
        "batch_size": recipe.train.batch_size,
        "parameters": models.count_parameters(model).total,
        "flops_per_token": half,
        "flops_per_token_uncausal": 2 * half - models.flops_per_token(model, 0),
        "learning_rate": recipe.train.learning_rate,
    }


def step(job: dict[str, Any]) -> dict[str, Any]:
    """Whole training steps as `anabranch train` runs them: forward, gradient, clip, AdamW."""
    machine.keep_freed_memory()  # as the command does, before the first array
    recipe = recipes.get("bench-190m")
    dtype = {"bf16": "bfloat16", "f32": "float32"}[job["dtype"]]
    model = dataclasses.replace(recipe.model, dtype=dtype, **job["options"])
    train = dataclasses.replace(
        recipe.train,
        batch_size=job["batch_size"],
        sequence_length=job["sequence_length"],
        learning_rate=job["learning_rate"],
        warmup_steps=0,
    )
    recipe = dataclasses.replace(recipe, model=model, train=train)
    tokens = np.asarray(job["tokens"], np.int32)
    shape = (job["batch_size"], job["sequence_length"])
    batch = {
        "tokens": tokens[:, :-1],
        "labels": tokens[:, 1:],
        "segment_ids": np.ones(shape, np.int32),
        "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy(),
    }
    state = keep_gradients(init_state(jax.random.key(0), recipe))
    train_step = jit_step(make_train_step(recipe)).lower(state, batch).compile()
    machine.return_freed_memory()  # the compiler's
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    first = np.array(jax.tree.leaves(state.params)[0])
    dropped = 0
    clock, freed = probe.Probe(job["warmup"]), machine.FreedMemory()
    for _ in range(job["warmup"] + job["steps"]):

        def run() -> float:
            nonlocal state, metrics
            state, metrics = jax.block_until_ready(train_step(state, batch))
            freed.after_step()  # as the trainer does
            return float(metrics.cross_entropy)

        metrics: Any = None
        clock.step(run)
        slots = tokens[:, 1:].size * model.topk * model.num_moe_layers
        dropped += slots - int(np.sum(metrics.group_sizes))
    result = clock.result(("jax", "jaxlib"))
    if dropped:
        raise RuntimeError(f"{dropped} routed slots were dropped")
    return result | {
        "parameters": parameters,
        "updated": bool(np.any(first != np.asarray(jax.tree.leaves(state.params)[0]))),
    }


def ffn(job: dict[str, Any]) -> dict[str, Any]:
    """The routed experts alone: forward and gradients of x, the routing weights and all weights."""
    inputs = ffn_inputs.make(job["shape"])
    bf16 = {name: jnp.asarray(a, jnp.bfloat16) for name, a in inputs._asdict().items()}
    ids, weights = jnp.asarray(inputs.ids), jnp.asarray(inputs.weights)
    y_grad = bf16["y_grad"]

    def forward(x: jax.Array, weights: jax.Array, *w: jax.Array) -> jax.Array:
        return ab.moe_ffn(x, ab.Routing(ids, weights, None), *w)

    @jax.jit
    def both(*args: jax.Array) -> Any:
        y, pullback = jax.vjp(forward, *args)
        return y, pullback(y_grad)

    args = (bf16["x"], weights, bf16["w_gate"], bf16["w_up"], bf16["w_down"])
    checked = ffn_inputs.check(inputs, np.asarray(both(*args)[0], np.float32))
    del inputs
    clock = probe.Probe(job["warmup"])
    for _ in range(job["warmup"] + job["steps"]):
        clock.step(lambda: jax.block_until_ready(both(*args)) and 0.0)
    return clock.result(("jax", "jaxlib")) | checked


def main() -> None:
    """Runs the job; its kind is `describe`, `step` or `ffn`."""
    job = probe.read_job()
    if job["kind"] == "describe":
        probe.write_result(describe())
        return
    result = {"step": step, "ffn": ffn}[job["kind"]](job)
    peaks = [engine.measure_peak_gflops("bfloat16") for _ in range(3)]
    result["versions"]["anabranch"] = machine.package_version()
    result |= {"isa": engine.isa(), "threads": engine.num_threads(), "peak_bf16_gflops": max(peaks)}
    probe.write_result(result)


if __name__ == "__main__":
    main()

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The model and its optimizer in plain jnp and f32: our structure, every operation replaced by its oracle."""

import contextlib
import dataclasses
import sysconfig
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from anabranch import models
from anabranch.layers import dense_ffn, gqa, mla, moe
from anabranch.models import model
from anabranch.ops import reference, reference_routing
from anabranch.train import schedule
from anabranch.train.step import init_state, make_train_step


@contextlib.contextmanager
def plain_operations():
    """Within, what is traced of `anabranch.models` calls no engine."""

    def moe_ffn(x, routing, *weights, **_):
        return reference.moe_ffn(x, routing.experts, routing.weights, *weights)

    def rms_norm(x, weight, epsilon=1e-6, dtype=None):
        return reference.rms_norm(x, weight, epsilon).astype(dtype or x.dtype)

    def add_rms_norm(x, branch, weight, epsilon=1e-6):
        return x + branch, rms_norm(x + branch, weight, epsilon)

    def attention(query, key, value, *, scale, segment_ids):
        return reference.attention(query, key, value, scale, segment_ids=segment_ids)

    plain = {
        "linear": lambda x, w, **_: x @ w,
        "attention": attention,
        "rms_norm": rms_norm,
        "add_rms_norm": add_rms_norm,
        "moe_ffn": moe_ffn,
        "topk_router": reference_routing.topk_router,
        "ragged_plan": reference_routing.ragged_plan,
        "linear_cross_entropy": lambda x, w, labels, z_loss: reference.linear_cross_entropy(
            x, w, labels, z_loss=z_loss
        ),
    }
    with pytest.MonkeyPatch.context() as patch:
        for module in (dense_ffn, gqa, mla, moe, model):
            for name, function in plain.items():
                if hasattr(module, name):
                    patch.setattr(module, name, function)
        yield


def plain_step(recipe):
    """`(params, opt_state, batch) -> (params, opt_state, loss)` by autodiff and optax alone."""
    config = dataclasses.replace(recipe.model, dtype="float32")
    train = recipe.train
    optimizer = optax.chain(
        optax.clip_by_global_norm(train.gradient_clip),
        optax.adamw(
            schedule.learning_rate(train), train.beta1, train.beta2, train.epsilon,
            weight_decay=train.weight_decay,
            mask=lambda p: jax.tree_util.tree_map_with_path(models.is_decayed, p),
        ),
    )  # fmt: skip

    def step(params, opt_state, batch):
        with plain_operations():
            (_, aux), gradients = jax.value_and_grad(models.loss, has_aux=True)(
                params, batch, config
            )
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        params = optax.apply_updates(params, updates)
        params = models.update_expert_bias(params, aux["group_sizes"], config)
        return params, opt_state, aux["cross_entropy"]

    return optimizer, step


def standard_library_text(size):
    """The first `size` bytes of Python's own sources, in the order of their names."""
    text = b""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= size:
            break
    return np.frombuffer(text[:size], np.uint8)


def batches(recipe, seed, steps):
    """The same batches for both runs of a seed."""
    text, rng = standard_library_text(1 << 20), np.random.default_rng(seed)
    shape = (recipe.train.batch_size, recipe.train.sequence_length)
    for _ in range(steps):
        starts = rng.integers(0, len(text) - shape[1] - 1, shape[0])
        rows = np.stack([text[s : s + shape[1] + 1] for s in starts]).astype(np.int32)
        yield {
            "tokens": rows[:, :-1],
            "labels": rows[:, 1:],
            "segment_ids": np.ones(shape, np.int32),
            "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape),
        }


def loss_curves(recipe, seeds, steps):
    """Losses of the trainer's step and of the plain one, [seeds, steps] each, on the same batches."""
    ours = jax.jit(make_train_step(recipe), donate_argnums=0)
    optimizer, step = plain_step(recipe)
    theirs = jax.jit(step)
    curves = []
    for seed in seeds:
        state = init_state(jax.random.key(seed), recipe)
        params = jax.tree.map(jnp.copy, state.params)
        opt_state = optimizer.init(params)
        pair = ([], [])
        for batch in batches(recipe, seed, steps):
            state, metrics = ours(state, batch)
            params, opt_state, loss = theirs(params, opt_state, batch)
            pair[0].append(float(metrics.cross_entropy))
            pair[1].append(float(loss))
        curves.append(pair)
    return tuple(np.asarray(curves).transpose(1, 0, 2))


def seed_noise(curves, last):
    """(mean difference, its standard error, spread between seeds) of the mean loss of the last steps."""
    ours, plain = (curve[:, -last:].mean(axis=1) for curve in curves)
    difference = ours - plain
    count = len(difference)
    return difference.mean(), difference.std(ddof=1) / np.sqrt(count), plain.std(ddof=1)


__all__ = ["loss_curves", "plain_operations", "seed_noise"]

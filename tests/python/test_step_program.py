# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What XLA is left with in a compiled training step: no product, no transposed weight, no second gradient tree."""

import collections
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anabranch import recipes
from anabranch.train.step import batch_shapes, init_state, jit_step, keep_gradients, make_train_step


@functools.cache
def compiled(remat="none", microbatches=1, **model):
    recipe = recipes.get("smoke")
    settings = {"num_layers": 4, "num_experts": 32, "remat": remat} | model
    recipe = dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, **settings),
        train=dataclasses.replace(recipe.train, microbatches=microbatches),
    )
    state = jax.eval_shape(lambda key: init_state(key, recipe), jax.random.key(0))
    step = jax.jit(make_train_step(recipe), donate_argnums=0)
    shapes = batch_shapes(recipe.train.batch_size, recipe.train.sequence_length)
    return step.lower(state, shapes).compile(), state


def opcodes(text):
    return collections.Counter(re.findall(r" = \S+ ([\w-]+)\(", text))


def shapes_of(text, opcode):
    return set(re.findall(rf" = \w+(\[[\d,]*\])\S* {opcode}\(", text))


def weight_shapes(state):
    """Every matrix as it lies and transposed, by experts and each for itself."""
    shapes = {leaf.shape for leaf in jax.tree.leaves(state.params) if leaf.ndim >= 2}
    shapes |= {shape[1:] for shape in shapes if len(shape) == 3}
    return {
        str(list(s)).replace(" ", "") for s in shapes | {(*s[:-2], s[-1], s[-2]) for s in shapes}
    }


@pytest.mark.parametrize("kind", ["mla", "gqa"])
def test_every_product_is_ours_and_no_weight_is_transposed_or_copied(kind):
    attention = dataclasses.replace(
        recipes.get("smoke").model.attention, kind=kind, num_kv_heads=2, qk_norm="head"
    )
    program, state = compiled(attention=attention)
    text = program.as_text()
    assert opcodes(text)["dot"] == 0 and opcodes(text)["convolution"] == 0
    # Transposes of activations and of routing may exist, of weights none; a weight is copied only
    # where it enters or leaves a program that does not own it, which a donated state never does.
    weights = weight_shapes(state)
    for opcode in ("transpose", "copy"):
        assert not shapes_of(text, opcode) & weights, (opcode, shapes_of(text, opcode) & weights)


def test_a_donated_state_is_overwritten_where_it_lies():
    program, state = compiled()
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    memory = program.memory_analysis()
    if memory is None:
        pytest.skip("this jaxlib reports no memory")
    assert memory.alias_size_in_bytes >= 0.99 * size


def test_kept_gradients_are_overwritten_where_they_lie_and_change_no_bit():
    recipe = recipes.get("smoke")
    state = init_state(jax.random.key(0), recipe)
    batch = {
        name: jnp.asarray(np.random.default_rng(0).integers(1, 9, shape.shape), jnp.int32)
        for name, shape in batch_shapes(4, 32).items()
    }
    expected, metrics = jax.jit(make_train_step(recipe))(state, batch)
    given = keep_gradients(state)
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(given))
    program = jit_step(make_train_step(recipe)).lower(given, batch).compile()
    assert not shapes_of(program.as_text(), "copy") & weight_shapes(state)
    memory = program.memory_analysis()
    assert memory is None or memory.alias_size_in_bytes >= 0.99 * size
    got, same_metrics = program(given, batch)
    jax.tree.map(np.testing.assert_array_equal, (expected.params, expected.opt_state), got[:2])
    np.testing.assert_array_equal(metrics.grad_squares, same_metrics.grad_squares)
    largest = np.argmax(metrics.grad_squares)  # what is kept are this step's gradients
    kept = np.asarray(jax.tree.leaves(got.gradients)[largest], np.float64)
    np.testing.assert_allclose(np.sum(kept**2), metrics.grad_squares[largest], rtol=1e-4)


def test_swiglu_keeps_nothing_in_f32_for_its_gradient():
    program, _ = compiled(dense_width=1000)  # a width of its own: rows [8 x 64, 1000]
    wide = re.findall(r"%(\S+) = f32\[(?:8,64|512),1000\]", program.as_text().split("ENTRY")[1])
    assert len(wide) <= 1, wide  # the sigmoid that both gradients share


def test_gradients_of_microbatches_are_added_into_one_tree():
    program, state = compiled(microbatches=4)
    if program.memory_analysis() is None:
        pytest.skip("this jaxlib reports no memory")
    temporary = [c.memory_analysis().temp_size_in_bytes for c in (compiled()[0], program)]
    tree = sum(leaf.size * 4 for leaf in jax.tree.leaves(state.params))
    # A quarter of the activations is held at a time; a second tree would add its whole size.
    assert temporary[1] < temporary[0] + tree / 2, (temporary, tree)


def test_remat_saves_memory():
    # Blocks enough that activations outweigh gradients.
    sizes = {}
    for policy in ("none", "selective", "full"):
        program, _ = compiled(remat=policy, num_layers=8, num_experts=4, topk=2)
        if program.memory_analysis() is None:
            pytest.skip("this jaxlib reports no memory")
        sizes[policy] = program.memory_analysis().temp_size_in_bytes
    assert sizes["full"] < sizes["selective"] < sizes["none"], sizes
    assert sizes["full"] < 0.7 * sizes["none"], sizes


@pytest.mark.parametrize("policy", ["selective", "full"])
def test_remat_changes_no_bit(policy):
    results = []
    for remat in ("none", policy):
        recipe = recipes.get("smoke")
        recipe = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, remat=remat))
        rng = np.random.default_rng(0)
        tokens = jnp.asarray(rng.integers(0, 256, (8, 64)), jnp.int32)
        batch = {
            "tokens": tokens,
            "labels": jnp.roll(tokens, -1, axis=1),
            "segment_ids": jnp.asarray(rng.integers(1, 3, (8, 64)).cumsum(axis=1) // 40, jnp.int32),
            "positions": jnp.broadcast_to(jnp.arange(64), (8, 64)),
        }
        state, metrics = jax.jit(make_train_step(recipe))(
            init_state(jax.random.key(0), recipe), batch
        )
        results.append((state.params, metrics.objective, metrics.grad_squares))
    jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize("batch, length, heads", [(1, 1, 1), (3, 37, 1), (1, 101, 3)])
def test_odd_shapes_train(batch, length, heads):
    recipe = recipes.get("smoke")
    attention = dataclasses.replace(recipe.model.attention, num_heads=heads)
    recipe = dataclasses.replace(
        recipe,
        model=dataclasses.replace(recipe.model, attention=attention, vocab_size=509),
        train=dataclasses.replace(recipe.train, warmup_steps=0),
    )
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 509, (batch, length)), jnp.int32)
    given = {
        "tokens": tokens,
        "labels": (tokens + 1) % 509,
        "segment_ids": jnp.ones_like(tokens),
        "positions": jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), tokens.shape),
    }
    step, state, losses = (
        jax.jit(make_train_step(recipe)),
        init_state(jax.random.key(0), recipe),
        [],
    )
    for _ in range(3):
        state, metrics = step(state, given)
        losses.append(float(metrics.cross_entropy))
    assert losses[2] < losses[1] < losses[0] and bool(metrics.applied), losses

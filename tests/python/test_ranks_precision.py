# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Low precision over several devices has the bits of one: tensor scales are of all ranks' rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anabranch as ab
import training
from anabranch.ops import token_tree
from anabranch.ops.quantize.operands import max_over_ranks
from anabranch.ops.token_tree import TokenTree
from test_ranks import after_steps, over_ranks
from training import assert_equal_trees, tiny

text = training.text


@pytest.mark.parametrize("recipe", ["nvfp4", "nvfp4-rht-2d", "mxfp8"])
def test_a_dense_product_quantises_the_rows_of_all_ranks_as_one_tensor(recipe):
    rng = np.random.default_rng(0)
    # The largest rows lie on one rank: without them the others would scale differently.
    sizes = np.where(np.arange(256) == 70, 60.0, 1.0)[:, None]
    x = jnp.asarray(rng.normal(size=(256, 64)) * sizes, jnp.bfloat16)
    y_grad = jnp.asarray(rng.normal(size=(256, 48)) * np.roll(sizes, 99), jnp.bfloat16)
    w = jnp.asarray(rng.normal(size=(64, 48)), jnp.float32)

    def products(x, y_grad):
        product = lambda x, w: ab.linear(x, token_tree.replicated(w), recipe=recipe)  # noqa: E731
        y, back = jax.vjp(product, x, w)
        dx, dw = back(y_grad)
        return y, dx, dw[None]

    with token_tree.scope(TokenTree(4)):
        expected = jax.jit(products)(x, y_grad)
    for count in (2, 4):
        y, dx, dw = over_ranks(products, x, y_grad, count=count, leaves=4 // count)
        np.testing.assert_array_equal(y, expected[0])
        np.testing.assert_array_equal(dx, expected[1])
        for one in dw:
            np.testing.assert_array_equal(one, expected[2][0])


def test_the_largest_is_found_among_subnormal_numbers_too():
    tiny_numbers = np.array([3e-41, 2e-42, 0, 1e-45], np.float32)
    most = over_ranks(lambda x: max_over_ranks(x, token_tree.current()), tiny_numbers)
    np.testing.assert_array_equal(most, np.full(4, tiny_numbers[0]))


# One layer is enough to compile: its products are those of any.
SMALL = ("model.num_layers=1", "model.num_dense_layers=0", "train.batch_size=4")


@functools.cache
def one_device(recipe):
    return after_steps(recipe, 1)


@pytest.mark.parametrize("count", [2, 4])
def test_training_under_nvfp4_has_the_bits_of_one_device(text, count):
    recipe = tiny(text, *SMALL, "precision.recipe=nvfp4", "parallel.wire=mxfp8")
    one = one_device(recipe)
    assert one[1].applied
    state, measured = after_steps(recipe, count)
    assert_equal_trees(state, one[0])
    assert_equal_trees(measured._replace(precision=0), one[1]._replace(precision=0))


def test_groups_of_ranks_scale_an_expert_by_the_rows_of_all_groups(text):
    recipe = tiny(text, *SMALL, "precision.recipe=bf16", "precision.overrides=all.fprop=nvfp4")
    one, spread = after_steps(recipe, 1, steps=1), after_steps(recipe, 2, steps=1, data=2)
    np.testing.assert_array_equal(spread[1].cross_entropy, one[1].cross_entropy)

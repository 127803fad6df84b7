# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Training over several devices has the bits of training on one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import training
from anabranch import recipes
from anabranch.errors import UsageError
from anabranch.ops import token_tree
from anabranch.ops.token_tree import TokenTree
from anabranch.train import ranks, step, trainer
from training import assert_equal_trees, records, tensors, tiny, tiny_arguments

text = training.text

# What does not depend on how long a step took or how much memory it needed.
REPORTED = (
    "step", "tokens", "loss", "bits_per_byte", "grad_norm", "learning_rate", "auxiliary_loss", "dropped_tokens",
    "expert_load", "skipped_steps",
)  # fmt: skip


def over_ranks(function, *arguments, count=4, leaves=2):
    """Runs `function` on each of `count` ranks with a tree over them; the first axis of arguments is spread."""
    tree = TokenTree(leaves, (("r", count),))

    def scoped(*parts):
        with token_tree.scope(tree):
            return function(*parts)

    mesh = Mesh(np.array(jax.devices()[:count]), ("r",))
    run = jax.shard_map(scoped, mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=False)
    return jax.jit(run)(*arguments)


def pairwise(parts):
    parts = list(parts)
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def test_the_tree_is_a_pairwise_sum_whoever_takes_it():
    x = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)  # one row for each leaf
    expected = pairwise(x)
    total = lambda x: token_tree.sum_over_ranks(token_tree.sum_over_tokens(x))  # noqa: E731
    with token_tree.scope(TokenTree(8)):
        np.testing.assert_array_equal(total(jnp.asarray(x)), expected)
    for count in (2, 4):
        results = over_ranks(lambda x: total(x)[None], x, count=count, leaves=8 // count)
        for result in results:
            np.testing.assert_array_equal(result, expected)


def test_leaves_of_a_count_that_does_not_divide_the_tokens_begin_at_whole_tokens():
    x = np.random.default_rng(1).normal(size=(11, 3)).astype(np.float32)
    borders = [11 * i // 4 for i in range(5)]
    leaves = [x[a:b].sum(axis=0) for a, b in zip(borders, borders[1:], strict=False)]
    with token_tree.scope(TokenTree(4)):
        total = token_tree.sum_over_tokens(jnp.asarray(x))
    np.testing.assert_allclose(total, pairwise(leaves), rtol=0, atol=11 * 2.0**-22)


def test_every_rank_differentiates_the_one_sum_by_its_own_part():
    x = np.arange(1, 9, dtype=np.float32)
    scale = np.full(4, 3.0, np.float32)  # what every rank holds a copy of

    def gradients(x, scale):
        def loss(x, scale):
            parts = x * token_tree.replicated(scale[0])
            return token_tree.sum_over_ranks(token_tree.sum_over_tokens(parts * parts))

        return jax.grad(loss, (0, 1))(x, scale)

    by_x, by_scale = over_ranks(gradients, x, scale)
    np.testing.assert_array_equal(by_x, 2 * 9 * x)
    np.testing.assert_array_equal(by_scale, np.full(4, 2 * 3 * np.sum(x * x)))


def test_look_up_gathers_the_gradient_of_all_ranks_rows():
    table = np.random.default_rng(2).normal(size=(6, 3)).astype(np.float32)
    tokens = np.array([0, 5, 5, 2, 2, 2, 0, 1], np.int32)
    weights = np.arange(24, dtype=np.float32).reshape(8, 3)

    def gradient(tokens, weights):
        rows = lambda table: jnp.sum(token_tree.look_up(table, tokens) * weights)  # noqa: E731
        return jax.grad(rows)(jnp.asarray(table))[None]

    expected = np.zeros_like(table)
    np.add.at(expected, tokens, weights)
    for result in over_ranks(gradient, tokens, weights):
        np.testing.assert_array_equal(result, expected)


def batch_of(recipe, seed=0):
    rng = np.random.default_rng(seed)
    shape = (recipe.train.batch_size, recipe.train.sequence_length)
    labels = rng.integers(0, 256, shape).astype(np.int32)
    labels[rng.random(shape) < 0.3] = -1
    segments = np.ones(shape, np.int32)
    segments[0, -5:] = 0  # padding, on the first rank alone
    return {
        "tokens": rng.integers(1, 256, shape).astype(np.int32),
        "labels": np.where(segments > 0, labels, -1),
        "segment_ids": segments,
        "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape).copy(),
    }


def after_steps(recipe, count, steps=2, change=lambda state: state, data=1):
    """State and last metrics after `steps` steps over `count` devices, as numpy arrays."""
    recipe = recipes.override(recipe, [f"parallel.devices={count}", f"parallel.data={data}"])
    over = ranks.Ranks(recipe)
    build = functools.partial(step.init_state, recipe=recipe)
    state = over.place(change(jax.jit(build)(jax.random.key(3))))
    take = jax.jit(over.spread(step.make_train_step(recipe, over.tree, over.expert_parallel)))
    for seed in range(steps):
        state, measured = take(state, batch_of(recipe, seed))
    return jax.device_get((over.gather(state), measured))


EVERYTHING = [
    "train.batch_size=8", "train.microbatches=2", "model.remat=full", "model.tie_embeddings=true",
    "model.load_balancing_coeff=0.01", "model.router_z_coeff=0.001", "model.z_loss=0.0001",
]  # fmt: skip


def test_all_that_sums_over_tokens_has_the_bits_of_one_device(text):
    recipe = tiny(text, *EVERYTHING)
    one = after_steps(recipe, 1)
    assert one[1].applied
    assert_equal_trees(after_steps(recipe, 4), one)
    # Of three ranks one has twice the sequences of the others, and one two of the eight experts.
    assert_equal_trees(after_steps(recipe, 3), one)


def test_more_ranks_than_experts_have_the_bits_of_one_device(text):
    recipe = tiny(text, "model.num_experts=3", "train.optimizer=muon")
    assert_equal_trees(after_steps(recipe, 4), after_steps(recipe, 1))


def test_leaves_are_handed_out_in_whole_subtrees():
    assert token_tree.leaf_runs(8, 3) == [(0, 2), (2, 2), (4, 4)]
    for ranks_ in range(1, 17):
        runs = token_tree.leaf_runs(16, ranks_)
        assert [begin for begin, _ in runs] == [sum(n for _, n in runs[:i]) for i in range(ranks_)]
        assert sum(count for _, count in runs) == 16
        assert all(begin % count == 0 and count & (count - 1) == 0 for begin, count in runs)
        assert max(count for _, count in runs) == 16 >> (ranks_.bit_length() - 1)


@pytest.mark.parametrize("data", [2, 4])
def test_groups_that_train_on_different_sequences_agree_to_rounding(text, data):
    recipe = tiny(text, *EVERYTHING)
    one = after_steps(recipe, 1)
    spread = after_steps(recipe, 4, data=data)
    # Forward has the same bits. An expert's weight gradient is summed in every group first: it differs in the
    # rounding of a sum of a few hundred terms, and with it all that follows.
    np.testing.assert_array_equal(
        after_steps(recipe, 4, steps=1, data=data)[1].cross_entropy,
        after_steps(recipe, 1, steps=1)[1].cross_entropy,
    )
    np.testing.assert_allclose(spread[1].objective, one[1].objective, rtol=2.0**-12)
    np.testing.assert_allclose(spread[1].grad_norm, one[1].grad_norm, rtol=2.0**-8)
    np.testing.assert_array_equal(spread[1].num_labels, one[1].num_labels)


def test_muon_orthogonalises_each_expert_alike_wherever_it_is(text):
    recipe = tiny(text, "train.optimizer=muon", "train.batch_size=8")
    one = after_steps(recipe, 1)
    assert one[1].applied
    momentum = one[0].opt_state[0].mu["layers"][1]["moe"]["w_up"]
    assert momentum.shape[0] == recipe.model.num_experts and np.any(momentum)
    assert_equal_trees(after_steps(recipe, 2), one)


def test_a_non_finite_step_is_skipped_whole_on_every_rank(text):
    recipe = tiny(text)
    batch = batch_of(recipe)
    lonely = next(t for t in batch["tokens"][0] if t not in batch["tokens"][1:])

    def poison(state):
        embedding = state.params["embedding"].at[lonely].set(jnp.nan)
        return state._replace(params=state.params | {"embedding": embedding})

    def before(recipe):
        build = functools.partial(step.init_state, recipe=recipe)
        return jax.device_get(poison(jax.jit(build)(jax.random.key(3))))

    state, measured = after_steps(recipe, 4, steps=1, change=poison)
    assert not measured.applied
    assert_equal_trees(state, before(recipe))


def test_a_run_has_the_same_bits_on_one_two_and_four_devices_and_resumes_on_others(
    text, tmp_path, monkeypatch
):
    monkeypatch.setattr(trainer, "SAMPLE_TOKENS", 3)
    trainer.run(tiny(text), tmp_path / "one", steps=4)
    trainer.run(tiny(text, "parallel.devices=2"), tmp_path / "two", steps=4)
    trainer.run(tiny(text, "parallel.devices=4"), tmp_path / "moved", steps=2)
    code, _, err = training.cli(
        "train", "--resume", "--devices", 2, "--steps", 4, "--out", tmp_path / "moved",
        **training.compiled_before(text),
    )  # fmt: skip
    assert (code, err) == (0, "")

    def reported(run):
        return [[record[name] for name in REPORTED] for record in records(run)]

    def held_out(run):
        return [record["held_out_loss"] for record in records(run, "eval")][-1]

    for other in ("two", "moved"):
        assert reported(tmp_path / other) == reported(tmp_path / "one")
        assert held_out(tmp_path / other) == held_out(tmp_path / "one")
        expected = tensors(tmp_path / "one", 4)
        for file, data in tensors(tmp_path / other, 4).items():
            assert data == expected[file], file


def test_devices_of_the_command_line_are_those_of_the_process(text, tmp_path):
    code, out, err = training.cli(
        "train", *tiny_arguments(text), "--devices", 8, "--out", tmp_path / "run"
    )
    assert code == 2 and "--devices 8: must divide train.batch_size=4" in err, (out, err)


def test_more_devices_than_the_process_has_is_a_usage_error(text):
    recipe = tiny(text, "parallel.devices=8", "train.batch_size=8")
    with pytest.raises(UsageError, match="this process has 4"):
        ranks.Ranks(recipe)

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The decoder: against numpy in f64, and the rules its callers rely on."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import numpy_model
from anabranch import models, recipes
from anabranch.layers import AttentionConfig, RotaryConfig

# Compiled once per shape and configuration: many small programs would take most of the time.
INIT = jax.jit(models.init, static_argnames="config")
LOSS = jax.jit(models.loss, static_argnames="config")
LOGITS = jax.jit(models.logits, static_argnames="config")
GRADIENTS = jax.jit(jax.value_and_grad(models.loss, has_aux=True), static_argnames="config")

MLA = AttentionConfig(
    num_heads=4,
    q_lora_rank=32,
    kv_lora_rank=16,
    nope_head_size=32,
    rope_head_size=16,
    value_head_size=32,
)
DEEPSEEK_V3 = models.Config(
    vocab_size=99,
    hidden_size=32,
    num_layers=2,
    num_dense_layers=1,
    dense_width=64,
    num_experts=16,
    topk=2,
    expert_width=16,
    num_groups=4,
    group_topk=2,
    scaling_factor=2.5,
    attention=MLA,
    rotary=RotaryConfig(factor=40.0, original_length=4),
    dtype="float32",
    init_scale=0.2,
)
SOFTMAX = {
    "num_layers": 1,
    "num_dense_layers": 0,
    "num_groups": 1,
    "group_topk": 1,
    "score_function": "softmax",
    "num_shared_experts": 0,
    "expert_bias": False,
    "scaling_factor": 1.0,
    "rotary": RotaryConfig(theta=1e4),
}


def gqa(qk_norm: str, kv_heads: int) -> AttentionConfig:
    return AttentionConfig(
        kind="gqa", num_heads=4, num_kv_heads=kv_heads, head_size=8, qk_norm=qk_norm
    )


# One MoE block: what is compiled here is paid for by every run of the tests.
ONE_BLOCK = dataclasses.replace(recipes.get("smoke").model, num_layers=1, num_dense_layers=0)

FAMILIES = {
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v2": dataclasses.replace(
        DEEPSEEK_V3,
        **(SOFTMAX | {"num_shared_experts": 2}),
        normalize=False,
        attention=dataclasses.replace(MLA, q_lora_rank=0),
    ),
    "mixtral": dataclasses.replace(DEEPSEEK_V3, **SOFTMAX, attention=gqa("none", 2)),
    "qwen3": dataclasses.replace(DEEPSEEK_V3, **SOFTMAX, attention=gqa("head", 1)),
    "olmoe": dataclasses.replace(
        DEEPSEEK_V3, **SOFTMAX, normalize=False, attention=gqa("full", 4), tie_embeddings=True
    ),
}


def problem(config, seed=0, batch=2, length=6):
    """(params with random norms and biases, batch) whose routing has no near ties."""
    rng = np.random.default_rng(seed)

    def disturb(path, leaf):
        name = jax.tree_util.keystr(path)
        noise = rng.standard_normal(leaf.shape).astype(np.float32)
        if "norm" in name:
            return leaf + 0.1 * noise
        return leaf + 0.3 * noise if "bias" in name else leaf

    params = INIT(jax.random.key(seed), config=config)
    params = jax.tree_util.tree_map_with_path(disturb, params)
    tokens = rng.integers(0, config.vocab_size, (batch, length)).astype(np.int32)
    labels = rng.integers(0, config.vocab_size, (batch, length)).astype(np.int32)
    labels[0, 0] = -1
    return params, {"tokens": tokens, "labels": labels}


def wide(params):
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_logits_loss_and_counts_match_numpy_f64(family) -> None:
    config = FAMILIES[family]
    params, batch = problem(config)
    logits, counts, margin = numpy_model.forward(wide(params), batch["tokens"], config)
    assert margin > 1e-4  # else the choice of experts would be a matter of rounding
    got = LOGITS(params, batch["tokens"], config=config)
    # Two layers of sums of at most 99 terms, each rounded to 2**-24: 1e-5 of the largest logit.
    np.testing.assert_allclose(got, logits, rtol=0, atol=2e-5 * np.abs(logits).max())
    loss, aux = LOSS(params, batch, config=config)
    assert loss == pytest.approx(numpy_model.cross_entropy(logits, batch["labels"]), rel=2e-5)
    np.testing.assert_array_equal(aux["group_sizes"], counts)
    assert int(aux["num_labels"]) == batch["labels"].size - 1


@pytest.mark.parametrize("family", ["deepseek-v3", "qwen3"])
def test_golden_gradients_match_differences_of_numpy_f64(family) -> None:
    config = FAMILIES[family]
    params, batch = problem(config, seed=1, batch=1)
    _, gradients = GRADIENTS(params, batch, config=config)
    leaves, structure = jax.tree_util.tree_flatten_with_path(wide(params))
    rng, step = np.random.default_rng(2), 1e-6

    def loss_at(index, change):
        moved = [leaf + change if i == index else leaf for i, (_, leaf) in enumerate(leaves)]
        tree = jax.tree.unflatten(structure, moved)
        logits, _, _ = numpy_model.forward(tree, batch["tokens"], config)
        return numpy_model.cross_entropy(logits, batch["labels"])

    for index, ((path, leaf), grad) in enumerate(
        zip(leaves, jax.tree.leaves(gradients), strict=True)
    ):
        name = jax.tree_util.keystr(path)
        if "expert_bias" in name:
            assert (np.asarray(grad) == 0).all()
            continue
        direction = rng.standard_normal(leaf.shape)
        change = (loss_at(index, step * direction) - loss_at(index, -step * direction)) / (2 * step)
        size = np.linalg.norm(np.asarray(grad)) * np.linalg.norm(direction)
        got = np.vdot(np.asarray(grad, np.float64), direction)
        assert abs(got - change) < 1e-4 * size, name


@pytest.mark.parametrize("name", recipes.names())
def test_init_has_exactly_the_counted_parameters(name) -> None:
    config = recipes.get(name).model
    shapes = jax.eval_shape(lambda key: models.init(key, config), jax.random.key(0))
    total = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert total == models.count_parameters(config).total
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(shapes))


def test_b5_remat_counts_each_token_once() -> None:
    kept = dataclasses.replace(ONE_BLOCK, dtype="float32")
    params, batch = problem(kept, batch=2, length=32)
    block = params["layers"][0]["moe"]
    block["router"] = jnp.zeros_like(block["router"])
    results = []
    for remat in ("none", "full"):
        config = dataclasses.replace(kept, remat=remat)
        results.append(GRADIENTS(params, batch, config=config))
    ((_, kept_aux), kept_grads), ((_, again_aux), again_grads) = results
    assert int(kept_aux["group_sizes"].sum()) == 64 * kept.topk
    np.testing.assert_array_equal(kept_aux["group_sizes"], again_aux["group_sizes"])
    for path, kept_leaf in jax.tree.leaves_with_path(kept_grads):
        again = again_grads
        for part in path:
            again = again[part.key if hasattr(part, "key") else part.idx]
        # XLA fuses the two programs differently: rounding of sums over 64 tokens.
        bound = 64 * np.finfo(np.float32).eps * max(np.abs(kept_leaf).max(), 1e-6)
        np.testing.assert_allclose(again, kept_leaf, rtol=0, atol=bound)


def test_b2_padding_is_routed_nowhere_and_changes_no_other_token() -> None:
    config = dataclasses.replace(
        ONE_BLOCK, dtype="float32", load_balancing_coeff=0.1, router_z_coeff=0.1
    )
    params, batch = problem(config, batch=1, length=16)
    padded = {name: np.pad(part, ((0, 0), (0, 5))) for name, part in batch.items()}
    padded["labels"][:, 16:] = -1
    padded["segment_ids"] = np.pad(np.ones((1, 16), np.int32), ((0, 0), (0, 5)))
    loss, aux = LOSS(params, batch, config=config)
    padded_loss, padded_aux = LOSS(params, padded, config=config)
    np.testing.assert_array_equal(aux["group_sizes"], padded_aux["group_sizes"])
    for name in ("cross_entropy", "load_balancing_loss", "router_z_loss"):
        assert float(aux[name]) == pytest.approx(float(padded_aux[name]), rel=1e-5), name
    assert float(loss) == pytest.approx(float(padded_loss), rel=1e-5)
    total = aux["cross_entropy"] + aux["load_balancing_loss"] + aux["router_z_loss"]
    assert float(loss) == pytest.approx(float(total), rel=1e-6)


def test_d8_a_batch_without_labels_has_loss_and_gradients_zero() -> None:
    config = ONE_BLOCK
    params, batch = problem(config, length=8)
    batch["labels"] = np.full_like(batch["labels"], -1)
    (loss, aux), grads = GRADIENTS(params, batch, config=config)
    assert float(loss) == 0 and int(aux["num_labels"]) == 0
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(grads))


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    config = dataclasses.replace(ONE_BLOCK, dtype="float32", router_z_coeff=0.1)
    params, batch = problem(config, batch=4, length=8)
    batch["labels"][0, :5] = -1
    whole, aux = LOSS(params, batch, config=config)
    parts = [
        LOSS(
            params,
            {name: part[half : half + 2] for name, part in batch.items()},
            config=config,
            num_labels=aux["num_labels"],
            auxiliary_scale=0.5,
        )[0]
        for half in (0, 2)
    ]
    assert float(sum(parts)) == pytest.approx(float(whole), rel=1e-6)


def test_packed_segments_are_independent() -> None:
    config = dataclasses.replace(DEEPSEEK_V3, num_layers=1)
    params, batch = problem(config, batch=1, length=12)
    ids = np.repeat([[1, 2]], 6, axis=1).astype(np.int32)
    ids = np.sort(ids, axis=1)
    positions = np.tile(np.arange(6, dtype=np.int32), 2)[None]
    packed = LOGITS(params, batch["tokens"], config=config, segment_ids=ids, positions=positions)
    for part in (slice(0, 6), slice(6, 12)):
        alone = LOGITS(params, batch["tokens"][:, part], config=config)
        np.testing.assert_allclose(packed[:, part], alone, rtol=0, atol=2e-5 * np.abs(alone).max())


def test_update_expert_bias_moves_each_layer_against_its_own_load() -> None:
    config = dataclasses.replace(recipes.get("smoke").model, num_layers=3)
    params = models.init(jax.random.key(0), config)
    sizes = np.array([[9, 1, 5, 5, 5, 5, 5, 5], [1, 9, 5, 5, 5, 5, 5, 5]], np.int32)
    moved = jax.jit(lambda p, s: models.update_expert_bias(p, s, config))(params, sizes)
    for layer, row in zip(moved["layers"][1:], sizes, strict=True):
        expected = config.expert_bias_rate * np.sign(5 - row)
        np.testing.assert_allclose(layer["moe"]["expert_bias"], expected, rtol=1e-6)
    same = jax.tree.map(lambda a, b: (a == b).all(), moved, params)
    changed = [jax.tree_util.keystr(p) for p, ok in jax.tree.leaves_with_path(same) if not ok]
    assert len(changed) == 2 and all("expert_bias" in name for name in changed)


def test_weight_decay_leaves_norms_and_biases_alone() -> None:
    params = models.init(jax.random.key(0), recipes.get("smoke").model)
    mask = jax.tree_util.tree_map_with_path(models.is_decayed, params)
    for path, decayed in jax.tree.leaves_with_path(mask):
        name = jax.tree_util.keystr(path)
        assert decayed == ("norm" not in name and "bias" not in name), name


def test_a_model_without_moe_layers_reports_no_counts() -> None:
    config = dataclasses.replace(DEEPSEEK_V3, num_layers=1)
    params, batch = problem(config)
    _, aux = LOSS(params, batch, config=config)
    assert aux["group_sizes"].shape == (0, config.num_experts)
    assert models.update_expert_bias(params, aux["group_sizes"], config) is params


def test_bf16_follows_f32() -> None:
    config = recipes.get("smoke").model
    params, batch = problem(config, length=32)
    narrow, _ = LOSS(params, batch, config=config)
    exact, _ = LOSS(params, batch, config=dataclasses.replace(config, dtype="float32"))
    # The logits' relative error is a few 2**-9; a near tie may also send a token elsewhere.
    assert float(narrow) == pytest.approx(float(exact), rel=0.02)

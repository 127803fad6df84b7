# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Recipes: published parameter counts, overrides and JSON."""

from __future__ import annotations

import dataclasses

import pytest

from anabranch import models, recipes
from anabranch.errors import UsageError

# Totals are the numbers of elements in the published checkpoints (DeepSeek-V3 without its
# multi-token prediction layer); "without look-up" is what a model card calls active parameters.
PUBLISHED_TOTALS = {
    "deepseek-v3-671b": 671_026_419_200,
    "deepseek-v2-lite": 15_706_484_224,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "olmoe-1b-7b": 6_919_161_856,
    "kimi-k2": 1_026_408_232_448,
}

# GFLOP per token of one training step at 4,096 tokens, causal attention.
PUBLISHED_FLOPS = {"deepseek-v3-671b": 250.45, "qwen3-235b-a22b": 148.33, "qwen3-30b-a3b": 23.08}


@pytest.mark.parametrize("name", PUBLISHED_TOTALS)
def test_total_parameters_equal_the_published_count(name: str) -> None:
    assert models.count_parameters(recipes.get(name).model).total == PUBLISHED_TOTALS[name]


def test_f3_active_parameters_and_flops_leave_out_the_look_up() -> None:
    config = recipes.get("deepseek-v2-lite").model
    counts = models.count_parameters(config)
    assert counts.active == 2_661_150_208
    assert counts.active - counts.embedding == 2_451_435_008
    no_attention = models.flops_per_token(config, 0)
    assert no_attention == 3 * 2 * 2_451_435_008
    tied = models.flops_per_token(dataclasses.replace(config, tie_embeddings=True), 0)
    assert tied == no_attention  # the head is one product, tied or not


@pytest.mark.parametrize("name", PUBLISHED_FLOPS)
def test_training_flops_match_published_accounts(name: str) -> None:
    flops = models.flops_per_token(recipes.get(name).model, 4096)
    # The published accounts leave norms and biases out: under 1e-4 of the whole.
    assert flops / 1e9 == pytest.approx(PUBLISHED_FLOPS[name], rel=2e-4)


@pytest.mark.parametrize("name", recipes.names())
def test_json_restores_every_recipe_exactly(name: str) -> None:
    recipe = recipes.get(name)
    assert recipe.name == name
    assert recipes.from_json(recipes.to_json(recipe)) == recipe


def test_default_has_the_experts_the_product_promises() -> None:
    model = recipes.get("default").model
    assert model.num_experts >= 64 and model.topk == 8 and model.num_shared_experts == 1


def test_override_changes_only_what_is_named() -> None:
    recipe = recipes.get("default")
    changed = recipes.override(
        recipe,
        [
            "model.num_experts=4", "model.topk=2", "train.learning_rate=1e-2",
            "train.tensorboard=false", "data.path=/corpus=1", "model.attention.num_heads=2",
        ],
    )  # fmt: skip
    before, after = ({p: v for p, _, v in recipes.paths(r)} for r in (recipe, changed))
    differing = {path: after[path] for path in after if after[path] != before[path]}
    assert differing == {
        "model.num_experts": 4, "model.topk": 2, "train.learning_rate": 1e-2,
        "train.tensorboard": False, "data.path": "/corpus=1", "model.attention.num_heads": 2,
    }  # fmt: skip


def test_contract_paths_exist() -> None:
    known = {path for path, _, _ in recipes.paths(recipes.get("smoke"))}
    assert known >= {
        "model.num_layers", "model.hidden_size", "model.num_experts", "model.topk",
        "model.expert_width", "train.batch_size", "train.sequence_length", "train.learning_rate",
        "train.checkpoint_every", "train.log_every", "data.path", "train.reduction_leaves",
        "parallel.waves", "parallel.capacity", "parallel.chunks", "precision.recipe",
        "precision.overrides",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("model.num_expert=3", "model.num_experts"),
        ("steps=3", "train.steps"),
        ("train.steps", "path=value"),
        ("train.steps=x", "an integer"),
        ("train.learning_rate=fast", "a number"),
        ("train.tensorboard=maybe", "true or false"),
        ("model.num_experts=4", "model.topk=8"),
        ("model.attention.num_heads=0", "model.attention.num_heads=0"),
        ("parallel.waves=0", "must be 1 to 64"),
        ("parallel.wire=fp8", "must be one of bf16, mxfp8"),
        ("parallel.capacity=some", "must be 'worst' or a number of rows"),
        ("precision.recipe=mxfp9", "must be one of bf16, mxfp8"),
        ("precision.overrides=first=bf16", "first:N=RECIPE"),
        ("precision.overrides=first:1=fp7", "fp7"),
        ("name=other", "no such setting"),
    ],
)
def test_override_errors_name_the_cause(setting: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        recipes.override(recipes.get("default"), [setting])


def test_unknown_recipe_lists_the_nearest() -> None:
    with pytest.raises(UsageError, match="deepseek-v3-671b"):
        recipes.get("deepseek-v3")


@pytest.mark.parametrize(
    "text",
    ["[", "[]", '{"name": "x", "model": {"depth": 3}}', '{"name": "x", "train": {"steps": "3"}}'],
)
def test_from_json_refuses_what_is_no_recipe(text: str) -> None:
    with pytest.raises(UsageError):
        recipes.from_json(text)

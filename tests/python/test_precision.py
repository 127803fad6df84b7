# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Low precision in recipes and in the training step."""

import jax
import numpy as np
import pytest

import anabranch as ab
from anabranch import models, recipes
from anabranch.cli import main
from anabranch.errors import UsageError
from anabranch.ops.quantize import GEMMS
from anabranch.ops.quantize.products import OPERANDS
from anabranch.ops.quantize.scope import MAX_PRODUCTS
from anabranch.recipes.precision import PrecisionConfig, describe
from anabranch.train import precision, trainer
from anabranch.train.step import init_state, make_train_step
from training import TINY, records, tensors, text, tiny  # noqa: F401


def names(config, layers=6):
    return ["bf16" if r is None else r.name for r in config.layers(layers)]


def test_overrides_select_layers():
    assert names(PrecisionConfig()) == ["bf16"] * 6
    kept = PrecisionConfig("mxfp8", "first:1=bf16,last:2=bf16")
    assert names(kept) == ["bf16", "mxfp8", "mxfp8", "mxfp8", "bf16", "bf16"]
    mixed = PrecisionConfig("nvfp4-sr", "1-3=mxfp8,2=bf16,9=bf16")
    assert names(mixed) == ["nvfp4-sr", "mxfp8", "bf16", "mxfp8", "nvfp4-sr", "nvfp4-sr"]
    assert names(PrecisionConfig("bf16", "last:9=fp8_block"), 2) == ["fp8_block"] * 2


def gemm_names(config, layers=3):
    return [
        "bf16" if r is None else "/".join(r.gemm(g).name for g in GEMMS)
        for r in config.layers(layers)
    ]


def test_overrides_select_products():
    one = PrecisionConfig("mxfp8", "all.wgrad=bf16,last:1.dgrad=nvfp4,0=bf16,0.fprop=fp8_block")
    assert gemm_names(one) == ["fp8_block/bf16/bf16", "mxfp8/mxfp8/bf16", "mxfp8/nvfp4/bf16"]
    later = PrecisionConfig("bf16", "1.wgrad=nvfp4-sr,1=mxfp8,2.fprop=mxfp8,2.fprop=bf16")
    assert gemm_names(later) == ["bf16", "mxfp8/mxfp8/mxfp8", "bf16"]
    mixed = PrecisionConfig("mxfp8", "all.dgrad=nvfp4").layers(1)[0]
    assert mixed.draws and mixed.has_tensor_scale
    assert [mixed.gemm(g).has_tensor_scale for g in GEMMS] == [False, True, False]
    # One operand of a product is enough.
    assert ab.Recipe("mixed", "mxfp8_e4m3", "mxfp8_e4m3", "nvfp4").has_tensor_scale
    rows = dict(describe(PrecisionConfig("mxfp8", "all.wgrad=bf16"), 2))
    assert rows["  dgrad  dx = dy w'"] == "dy mxfp8_e4m3; w mxfp8_e4m3"
    assert rows["  wgrad  dw = x' dy"] == "x bf16, dy bf16"


def test_recipes_need_bf16_products():
    with pytest.raises(UsageError, match="needs model.dtype bfloat16"):
        recipes.override(recipes.get("smoke"), ["precision.recipe=mxfp8", "model.dtype=float32"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("precision.recipe=fp7", r"precision\.recipe='fp7'; must be one of bf16, mxfp8"),
        ("precision.recipe=mxfp8-sr", r"precision\.recipe='mxfp8-sr'; mxfp8 has no variation -sr"),
        ("precision.overrides=first:2=fp7", r"precision\.overrides: recipe='fp7'; must be one of"),
        ("precision.overrides=all.up=bf16", r"='all\.up=bf16': must be .* \.fprop, \.dgrad or"),
        ("precision.overrides=first=bf16", r"precision\.overrides='first=bf16': must be first:N="),
    ],
)
def test_a_wrong_setting_is_named_by_its_path(setting, message):
    with pytest.raises(UsageError, match=message):
        recipes.override(recipes.get("smoke"), [setting])


def test_the_table_says_what_stays_high():
    rows = dict(describe(PrecisionConfig("nvfp4", "0=bf16"), 4))
    assert rows["layer 0: all products"] == "bf16"
    assert rows["  dgrad  dx = dy w'"] == "dy nvfp4, stochastic; w nvfp4_16x16"
    assert rows["router"].startswith("f32")
    assert "master weights, weight gradients and their sums" in rows
    assert describe(PrecisionConfig(), 4) == [("all layers: all products", "bf16")]


def test_the_command_prints_the_table_of_a_variation(capsys):
    assert main(["recipes", "nvfp4-sr"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "dgrad dx = dy w' dy nvfp4; w nvfp4_16x16" in out
    assert (
        "nvfp4 E2M1, blocks of 16 along the contracted axis, scale E4M3 to nearest, and one f32"
        in out
    )
    assert "nvfp4_16x16 E2M1, blocks of 16 x 16, scale E4M3" in out
    assert main(["recipes", "fp8_block"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "fp8_block_128x128 E4M3, blocks of 128 x 128, scale f32, a power of two (rceil)" in out
    assert main(["recipes", "mxfp8+floor"]) == 0
    assert "scale E8M0 (floor)" in capsys.readouterr().out
    assert main(["recipes", "mxfp8-sr"]) == 2


def compiled(*settings):
    recipe = recipes.override(recipes.get("smoke"), [*TINY, *settings])
    rng = np.random.default_rng(0)
    shape = (recipe.train.batch_size, recipe.train.sequence_length)
    batch = {
        "tokens": rng.integers(0, 256, shape, dtype=np.int32),
        "labels": rng.integers(0, 256, shape, dtype=np.int32),
        "segment_ids": np.ones(shape, np.int32),
        "positions": np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape),
    }
    state, step = init_state(jax.random.key(0), recipe), jax.jit(make_train_step(recipe))
    return state, lambda state: step(state, batch)


def test_a_step_reports_what_quantisation_did():
    state, step = compiled("precision.recipe=mxfp8+floor", "precision.overrides=0=bf16")
    metrics = step(state)[1]
    assert bool(metrics.applied)
    config = recipes.override(recipes.get("smoke"), TINY).model
    names = precision.product_names(config)
    found = precision.summary(metrics.precision, names)
    assert 0 < found["saturated_share"] < 0.05
    assert 0 <= found["flushed_share"] < 0.2
    (layer,) = found["quantized"]["layers"]
    assert layer["layer"] == 1
    # q_a, q_b, kv_a, kv_b, o; gate, up, down of the routed and of the shared experts.
    assert len(layer["products"]) == 11
    for index, product in enumerate(layer["products"]):
        assert min(product["sqnr_db"]) > 20
        # The product is called by the weights that it multiplies with.
        weight = state.params["layers"][1]
        for part in product["name"].split("."):
            weight = weight[part]
        assert weight.size == metrics.precision[1, index, OPERANDS.index("fprop_w"), 0]
    assert len({product["name"] for product in layer["products"]}) == 11
    assert precision.summary(np.zeros((0, 16, 6, 5), np.float32), names) == {}


def test_operands_that_are_not_quantised_have_no_figures():
    sums = np.zeros((1, 16, 6, 5))
    sums[0, 0, 0] = 100, 1, 2, 1000, 1
    (layer,) = precision.summary(sums, [["attention.q"]])["quantized"]["layers"]
    (product,) = layer["products"]
    assert product["name"] == "attention.q"
    assert product["saturated_share"] == [0.01] + [None] * 5
    assert product["flushed_share"] == [0.02] + [None] * 5
    assert product["sqnr_db"] == [30.0] + [None] * 5


@pytest.mark.parametrize("name", ("qwen3-30b-a3b", "deepseek-v2-lite", "default"))
def test_every_layer_names_its_products(name):
    config = recipes.get(name).model
    shapes = jax.eval_shape(lambda: models.init(jax.random.key(0), config))
    for layer, names in zip(shapes["layers"], precision.product_names(config), strict=True):
        leaves = jax.tree_util.tree_flatten_with_path(layer)[0]
        paths = {jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves}
        matrices = {p for p in paths if not p.endswith(("norm", "router", "expert_bias"))}
        assert set(names) == matrices and len(names) == len(matrices) <= MAX_PRODUCTS


def test_stochastic_steps_repeat_and_differ_from_each_other():
    state, step = compiled("precision.recipe=nvfp4", "precision.overrides=0=bf16")
    first, second = step(state), step(state)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(a, b)
    # The same parameters at a later step: only the draws are others.
    moved = first[0]._replace(params=state.params)
    later = step(moved)[1]
    assert float(later.cross_entropy) == float(first[1].cross_entropy)  # fprop draws nothing
    assert float(later.grad_norm) != float(first[1].grad_norm)


def test_a_resumed_run_draws_what_the_whole_one_draws(text, tmp_path):  # noqa: F811
    # nvfp4: the keys of stochastic rounding follow the step, wherever a run was stopped.
    one_layer = ["model.num_layers=1", "model.num_dense_layers=0", "model.num_shared_experts=0"]
    recipe = tiny(
        text, "precision.recipe=nvfp4", "train.steps=4", "train.tensorboard=false", *one_layer
    )
    trainer.run(recipe, tmp_path / "whole")
    trainer.run(recipe, tmp_path / "parts", steps=2)
    trainer.run(recipe, tmp_path / "parts", resume=True)
    assert records(tmp_path / "parts", "started")[-1]["resumed_from"] == 2
    assert tensors(tmp_path / "parts", 4) == tensors(tmp_path / "whole", 4)
    for a, b in zip(records(tmp_path / "parts"), records(tmp_path / "whole"), strict=True):
        for key in ("step", "loss", "grad_norm", "flushed_share", "quantized"):
            assert a[key] == b[key], key
    names = [product["name"] for product in a["quantized"]["layers"][0]["products"]]
    assert "moe.w_down" in names and "Flushed to zero, step 4" in (
        tmp_path / "parts" / "report.html"
    ).read_text("utf-8")

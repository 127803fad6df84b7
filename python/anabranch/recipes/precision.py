# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Which number format each layer's products have: `precision.recipe` and `precision.overrides`."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax.numpy as jnp

from anabranch.layers.config import check
from anabranch.ops.quantize.formats import FORMATS
from anabranch.ops.quantize.recipe import GEMMS, by_gemm, get_recipe
from anabranch.ops.quantize.recipe import Recipe as ProductRecipe


@dataclasses.dataclass(frozen=True)
class PrecisionConfig:
    """The number format of the products.

    `recipe` is "bf16", "mxfp8", "mxfp8_hybrid", "fp8_block" or "nvfp4", with the variations of
    `anabranch.ops.quantize.get_recipe`. `overrides` gives layers another one: comma-separated
    `first:N=RECIPE`, `last:N=RECIPE`, `I=RECIPE`, `I-J=RECIPE` (layers count from 0) or `all=RECIPE`, later
    ones winning. With `.fprop`, `.dgrad` or `.wgrad` before the `=` only that product of those layers.
    """

    recipe: str = "bf16"
    overrides: str = ""

    def __post_init__(self) -> None:
        """Checks every name."""
        try:
            get_recipe(self.recipe, "precision")
        except ValueError as error:
            raise ValueError(str(error).removeprefix("precision: ")) from None
        for part in self.overrides.split(",") if self.overrides else ():
            rule = (
                "must be first:N=RECIPE, last:N=RECIPE, I=RECIPE, I-J=RECIPE or all=RECIPE, "
                "comma-separated; .fprop, .dgrad or .wgrad before the = selects a product"
            )
            check(self, "overrides", _OVERRIDE.fullmatch(part) is not None, rule)
            get_recipe(part.partition("=")[2], "overrides")

    def layers(self, num_layers: int) -> tuple[ProductRecipe | None, ...]:
        """The recipe of each layer; None for bf16."""
        chosen = [dict.fromkeys(GEMMS, get_recipe(self.recipe)) for _ in range(num_layers)]
        for part in self.overrides.split(",") if self.overrides else ():
            found: Any = _OVERRIDE.fullmatch(part)
            for index in _selected(found, num_layers):
                gemms = GEMMS if found["gemm"] is None else (found["gemm"],)
                chosen[index] |= dict.fromkeys(gemms, get_recipe(found["recipe"]))
        return tuple(by_gemm(**layer) for layer in chosen)


_OVERRIDE = re.compile(
    r"(?:(?P<end>first|last):(?P<count>\d+)|(?P<low>\d+)(?:-(?P<high>\d+))?|all)"
    r"(?:\.(?P<gemm>fprop|dgrad|wgrad))?=(?P<recipe>[\w+-]+)"
)


def _selected(found: re.Match[str], num_layers: int) -> range:
    layers = range(num_layers)
    if found["end"] is None and found["low"] is None:
        return layers
    if found["end"] == "first":
        return layers[: int(found["count"])]
    if found["end"] == "last":
        return layers[max(num_layers - int(found["count"]), 0) :]
    low = int(found["low"])
    return layers[low : int(found["high"] or low) + 1]


def _products(recipe: ProductRecipe) -> list[tuple[str, str]]:
    """Rows of the three products of a layer."""
    fprop, dgrad, wgrad = map(recipe.gemm, GEMMS)
    drawn = {True: ", stochastic", False: ""}
    turned = ", Hadamard along tokens" if wgrad.hadamard else ""
    backwards = f"dy {dgrad.dy}{drawn[dgrad.stochastic_gradients]}; w {dgrad.w}"
    along_tokens = f"x {wgrad.x}, dy {wgrad.dy}{drawn[wgrad.stochastic_gradients]}{turned}"
    return [
        ("  fprop  y = x w", f"x {fprop.x}, w {fprop.w}"),
        ("  dgrad  dx = dy w'", backwards),
        ("  wgrad  dw = x' dy", along_tokens),
    ]


_SHORT = {"float8_e4m3fn": "E4M3", "float8_e5m2": "E5M2", "float4_e2m1fn": "E2M1",
          "float8_e8m0fnu": "E8M0", "float32": "f32"}  # fmt: skip


def _formats(recipe: ProductRecipe) -> list[tuple[str, str]]:
    """Rows of the formats that a layer's products use: element, block and scale."""
    found = {}
    for one in map(recipe.gemm, GEMMS):
        for name in (one.x, one.w, one.dy):
            if name == "bf16":
                continue
            format = FORMATS[name]
            element, scale = (_SHORT[jnp.dtype(t).name] for t in (format.element, format.scale))
            across = f" x {format.block}" if format.square else " along the contracted axis"
            how = f" ({one.scale_mode})"
            if format.has_tensor_scale:
                how = " to nearest, and one f32 for the tensor or expert"
            elif scale == "f32":
                how = f", a power of two ({one.scale_mode})"
            text = f"{element}, blocks of {format.block}{across}, scale {scale}{how}"
            found[f"  {name}"] = text
    return list(found.items())


# The tensors of a training step, and what they are under a recipe.
HIGH_PRECISION = (
    ("embedding, output head", "bf16 products"),
    ("router", "f32 product, f32 scores"),
    ("norms, rotary embedding, activations", "f32 arithmetic, bf16 storage"),
    ("attention core (scores and values)", "bf16 products, f32 softmax"),
    ("residual stream between layers", "as in bf16 training"),
    ("rows sent between ranks", "as in bf16 training, or by parallel.wire"),
    ("sums inside every product", "f32"),
    ("master weights, weight gradients and their sums", "f32"),
    ("Adam moments", "f32"),
    ("evaluation and generation", "bf16 products"),
)


def describe(precision: PrecisionConfig, num_layers: int) -> list[tuple[str, str]]:
    """Rows (tensor, format) of a table: what is quantised in which layers, and what is not."""
    by_recipe: dict[ProductRecipe | None, list[int]] = {}
    for index, recipe in enumerate(precision.layers(num_layers)):
        by_recipe.setdefault(recipe, []).append(index)
    rows = []
    for recipe, layers in by_recipe.items():
        where = f"layers {layers[0]}-{layers[-1]}" if len(layers) > 1 else f"layer {layers[0]}"
        if len(layers) != layers[-1] - layers[0] + 1:
            where = "layers " + ", ".join(map(str, layers))
        if len(layers) == num_layers:
            where = "all layers"
        if recipe is None:
            rows.append((f"{where}: all products", "bf16"))
            continue
        names = list(dict.fromkeys(recipe.gemm(gemm).name for gemm in GEMMS))
        what = f"{where}: attention projections, dense, routed and shared FFN"
        rows += [(what, " and ".join(names)), *_products(recipe), *_formats(recipe)]
    return [*rows, *HIGH_PRECISION] if precision.recipe != "bf16" or precision.overrides else rows

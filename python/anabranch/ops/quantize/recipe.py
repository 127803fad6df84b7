# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Recipes: which format each operand of the three products of a layer takes."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from anabranch.ops.quantize.formats import FORMATS, SCALE_MODES

# y = x w, dx = dy w', dw = x' dy.
GEMMS = ("fprop", "dgrad", "wgrad")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Formats of rows x, weights w and gradients dy, for fprop, dgrad and wgrad.

    Both copies of an operand, blocks along one axis and along the other, are quantised from high
    precision. `stochastic_gradients` rounds dy stochastically in both copies; `hadamard` transforms x
    and dy of wgrad along tokens first (NVFP4). Sums are f32. `gemms` gives products of GEMMS another
    recipe, as in `(("wgrad", BF16),)`; `by_gemm` makes such recipes.
    """

    name: str
    x: str
    w: str
    dy: str
    scale_mode: str = "rceil"
    stochastic_gradients: bool = False
    hadamard: bool = False
    gemms: tuple[tuple[str, Recipe], ...] = ()

    def __post_init__(self) -> None:
        """Checks the names."""
        for name, _ in self.gemms:
            if name not in GEMMS:
                raise ValueError(f"Recipe: gemms={name!r}; must be one of {', '.join(GEMMS)}")
        if (self.x, self.w, self.dy) == ("bf16",) * 3:
            return
        for field in ("x", "w", "dy"):
            if getattr(self, field) not in FORMATS:
                raise ValueError(
                    f"Recipe: {field}={getattr(self, field)!r}; must be one of {', '.join(FORMATS)}"
                )
        if self.scale_mode not in SCALE_MODES:
            raise ValueError(
                f"Recipe: scale_mode={self.scale_mode!r}; must be one of {', '.join(SCALE_MODES)}"
            )

    def gemm(self, name: str) -> Recipe:
        """The recipe of one product of GEMMS, on its own."""
        alone = dataclasses.replace(self, gemms=()) if self.gemms else self
        return dict(self.gemms).get(name, alone)

    @property
    def draws(self) -> bool:
        """Whether any product rounds stochastically."""
        return any(self.gemm(name).stochastic_gradients for name in ("dgrad", "wgrad"))

    @property
    def has_tensor_scale(self) -> bool:
        """Whether any product's operands have a scale of the whole tensor (NVFP4)."""
        recipes = [self.gemm(name) for name in GEMMS]
        formats = {format for recipe in recipes for format in (recipe.x, recipe.w, recipe.dy)}
        return any(format != "bf16" and FORMATS[format].has_tensor_scale for format in formats)


# A product that takes its operands as bf16 among others that do not; no layer's recipe on its own.
BF16 = Recipe("bf16", "bf16", "bf16", "bf16")

# arXiv 2506.08027 and Transformer Engine (E4M3 everywhere; hybrid: E5M2 gradients), arXiv 2412.19437,
# arXiv 2509.25149.
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("mxfp8", "mxfp8_e4m3", "mxfp8_e4m3", "mxfp8_e4m3"),
        Recipe("mxfp8_hybrid", "mxfp8_e4m3", "mxfp8_e4m3", "mxfp8_e5m2"),
        Recipe("fp8_block", "fp8_block_1x128", "fp8_block_128x128", "fp8_block_1x128"),
        Recipe("nvfp4", "nvfp4", "nvfp4_16x16", "nvfp4", "rceil", True, True),
    )
}
RECIPE_NAMES = ("bf16", *RECIPES)
_WITHOUT = {
    "sr": {"stochastic_gradients": False},
    "rht": {"hadamard": False},
    "2d": {"w": "nvfp4"},
}


def get_recipe(recipe: Any, op: str = "recipe") -> Recipe | None:
    """Returns the `Recipe` of a name, or the given one; None for None and "bf16".

    A name may end in variations, for ablations: "mxfp8+floor" (also "+even", "+ceil") changes the scale
    mode; "nvfp4-sr", "-rht", "-2d" leave out stochastic rounding, the Hadamard transform, or square
    weight blocks. ValueError names an unknown one.
    """
    if recipe is None or recipe == "bf16" or isinstance(recipe, Recipe):
        return None if recipe == "bf16" else recipe
    match = re.fullmatch(r"(\w+)((?:[+-]\w+)*)", recipe) if isinstance(recipe, str) else None
    if match is None or match[1] not in RECIPES:
        raise ValueError(f"{op}: recipe={recipe!r}; must be one of {', '.join(RECIPE_NAMES)}")
    found = RECIPES[match[1]]
    for sign, word in re.findall(r"([+-])(\w+)", match[2]):
        if sign == "+" and word in ("floor", "even", "ceil") and match[1] != "nvfp4":
            found = dataclasses.replace(found, scale_mode=word)
        elif sign == "-" and word in _WITHOUT and match[1] == "nvfp4":
            found = dataclasses.replace(found, **_WITHOUT[word])
        else:
            raise ValueError(f"{op}: recipe={recipe!r}; {match[1]} has no variation {sign}{word}")
    return dataclasses.replace(found, name=recipe)


def by_gemm(fprop: Recipe | None, dgrad: Recipe | None, wgrad: Recipe | None) -> Recipe | None:
    """One recipe of three for single products; None stands for bf16, also as the result."""
    base = fprop or dgrad or wgrad
    if base is None:
        return None
    pairs = zip(GEMMS, (fprop, dgrad, wgrad), strict=True)
    others = tuple((name, recipe or BF16) for name, recipe in pairs if recipe != base)
    return dataclasses.replace(base, gemms=others)

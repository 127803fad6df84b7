# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Block-scaled low precision: MXFP8, MXFP4, NVFP4 and FP8 blocks. See docs/low-precision.md."""

from __future__ import annotations

from anabranch.ops.quantize.formats import FORMATS, SCALE_MODES, Format
from anabranch.ops.quantize.functions import grouped_quantize, quantize
from anabranch.ops.quantize.quantized import Quantized
from anabranch.ops.quantize.recipe import (
    BF16,
    GEMMS,
    RECIPE_NAMES,
    RECIPES,
    Recipe,
    by_gemm,
    get_recipe,
)
from anabranch.ops.quantize.swizzle import swizzle_scale, unswizzle_scale

__all__ = [
    "BF16",
    "GEMMS",
    "FORMATS",
    "SCALE_MODES",
    "Format",
    "Quantized",
    "RECIPES",
    "RECIPE_NAMES",
    "Recipe",
    "by_gemm",
    "get_recipe",
    "grouped_quantize",
    "quantize",
    "swizzle_scale",
    "unswizzle_scale",
]

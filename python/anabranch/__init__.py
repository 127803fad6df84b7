# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Anabranch: dropless mixture-of-experts language models in JAX on a C++ engine.

Names are loaded at first use, so that importing the package costs nothing and changes nothing.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module that defines it.
_NAMES = {
    "ragged_dot": "anabranch.ops.ragged_dot",
    "ragged_dot_general": "anabranch.ops.ragged_dot",
    "use_in_jax": "anabranch.ops.use_in_jax",
    "topk_router": "anabranch.ops.router",
    "Routing": "anabranch.ops.router",
    "load_balancing_loss": "anabranch.ops.balance",
    "router_z_loss": "anabranch.ops.balance",
    "update_expert_bias": "anabranch.ops.balance",
    "ragged_plan": "anabranch.ops.ragged_plan",
    "RaggedPlan": "anabranch.ops.ragged_plan",
    "gather_rows": "anabranch.ops.rows",
    "combine_rows": "anabranch.ops.rows",
    "moe_ffn": "anabranch.ops.moe_ffn",
    "pack_experts": "anabranch.ops.pack_experts",
    "PackedExperts": "anabranch.ops.pack_experts",
    "ragged_all_to_all": "anabranch.ops.expert_parallel.ragged_all_to_all",
    "ExpertParallel": "anabranch.ops.expert_parallel",
    "start_processes": "anabranch._processes",
    "ExpertParallelPlan": "anabranch.ops.expert_parallel",
    "linear": "anabranch.ops.linear",
    "attention": "anabranch.ops.attention",
    "linear_cross_entropy": "anabranch.ops.linear_cross_entropy",
    "quantize": "anabranch.ops.quantize",
    "grouped_quantize": "anabranch.ops.quantize",
    "Quantized": "anabranch.ops.quantize",
    "Recipe": "anabranch.ops.quantize",
}
_MODULES = ("data", "engine", "errors", "interop", "layers", "models", "ops", "recipes", "train")

__all__ = ["__version__", *_NAMES, *_MODULES]

if TYPE_CHECKING:
    # ruff: noqa: F401
    from anabranch import data, engine, errors, interop, layers, models, ops, recipes, train
    from anabranch._processes import start_processes
    from anabranch.ops.attention import attention
    from anabranch.ops.balance import load_balancing_loss, router_z_loss, update_expert_bias
    from anabranch.ops.expert_parallel import ExpertParallel, ExpertParallelPlan
    from anabranch.ops.expert_parallel.ragged_all_to_all import ragged_all_to_all
    from anabranch.ops.linear import linear
    from anabranch.ops.linear_cross_entropy import linear_cross_entropy
    from anabranch.ops.moe_ffn import moe_ffn
    from anabranch.ops.pack_experts import PackedExperts, pack_experts
    from anabranch.ops.quantize import Quantized, Recipe, grouped_quantize, quantize
    from anabranch.ops.ragged_dot import ragged_dot, ragged_dot_general
    from anabranch.ops.ragged_plan import RaggedPlan, ragged_plan
    from anabranch.ops.router import Routing, topk_router
    from anabranch.ops.rows import combine_rows, gather_rows
    from anabranch.ops.use_in_jax import use_in_jax


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"anabranch.{name}")
    else:
        raise AttributeError(f"module 'anabranch' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if os.environ.get("ANABRANCH_USE_IN_JAX") == "1":
    __getattr__("use_in_jax")()

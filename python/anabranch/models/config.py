# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The shape of a model: one frozen dataclass for every family."""

from __future__ import annotations

import dataclasses

from anabranch.layers.config import AttentionConfig, RotaryConfig, check
from anabranch.layers.moe_config import MoEConfig


@dataclasses.dataclass(frozen=True)
class Config:
    """A decoder of `num_layers` blocks, the first `num_dense_layers` of them with a dense FFN.

    Routing fields have the meaning of `anabranch.topk_router`. `expert_bias` gives each router the
    selection bias of DeepSeek-V3 (arXiv 2412.19437), which `update_expert_bias` moves by
    `expert_bias_rate` per step. `load_balancing_coeff` and `router_z_coeff` weigh auxiliary losses
    (mean over the MoE layers), `z_loss` that of the output layer. `dtype` is the type of the
    products, "bfloat16" or "float32"; parameters are always f32. `remat` says what the
    backward pass computes a second time: "none" nothing, "full" each block but its inputs, "selective" all but the
    products of attention and of the experts (docs/performance.md has memory and time of each).
    """

    vocab_size: int = 512
    hidden_size: int = 256
    num_layers: int = 4
    num_dense_layers: int = 1
    dense_width: int = 768
    num_experts: int = 64
    topk: int = 8
    expert_width: int = 128
    num_shared_experts: int = 1
    score_function: str = "sigmoid"
    num_groups: int = 1
    group_topk: int = 1
    group_score: str = "top2"
    normalize: bool = True
    scaling_factor: float = 1.0
    expert_bias: bool = True
    expert_bias_rate: float = 1e-3
    load_balancing_coeff: float = 0.0
    router_z_coeff: float = 0.0
    z_loss: float = 0.0
    attention: AttentionConfig = AttentionConfig()
    rotary: RotaryConfig = RotaryConfig()
    norm_epsilon: float = 1e-6
    init_scale: float = 0.02
    tie_embeddings: bool = False
    dtype: str = "bfloat16"
    remat: str = "none"

    def __post_init__(self) -> None:
        """Checks the values that no single layer checks."""
        for name in ("vocab_size", "hidden_size", "num_layers", "dense_width"):
            check(self, name, getattr(self, name) >= 1, "must be at least 1")
        check(self, "num_dense_layers", self.num_dense_layers >= 0, "must not be negative")
        dtypes = ("bfloat16", "float32")
        check(self, "dtype", self.dtype in dtypes, f"must be one of {', '.join(dtypes)}")
        policies = ("none", "selective", "full")
        check(self, "remat", self.remat in policies, f"must be one of {', '.join(policies)}")
        self.moe  # noqa: B018  (building it checks the routing fields)

    @property
    def num_moe_layers(self) -> int:
        """Blocks with routed experts; 0 when there are no more layers than dense ones."""
        return max(self.num_layers - self.num_dense_layers, 0)

    @property
    def moe(self) -> MoEConfig:
        """The configuration of each MoE block."""
        names = (field.name for field in dataclasses.fields(MoEConfig))
        return MoEConfig(**{name: getattr(self, name) for name in names})

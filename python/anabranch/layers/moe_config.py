# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The shape of a mixture-of-experts block, as a frozen dataclass."""

from __future__ import annotations

import dataclasses

from anabranch.layers.config import check

SCORE_FUNCTIONS = ("softmax", "softmax_topk", "sigmoid", "sqrtsoftplus")


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """Routed and shared experts of one block.

    Routing fields (`score_function` to `scaling_factor`) are those of `anabranch.topk_router`.
    `num_shared_experts` experts of `expert_width` see every token; they are one FFN of
    `num_shared_experts * expert_width`, added outside the scaling. `expert_bias` adds a selection
    bias to the parameters.
    """

    hidden_size: int = 256
    num_experts: int = 64
    topk: int = 8
    expert_width: int = 128
    num_shared_experts: int = 0
    score_function: str = "softmax"
    num_groups: int = 1
    group_topk: int = 1
    group_score: str = "top2"
    normalize: bool = False
    scaling_factor: float = 1.0
    expert_bias: bool = False
    load_balancing_coeff: float = 0.0
    router_z_coeff: float = 0.0
    init_scale: float = 0.02

    def __post_init__(self) -> None:
        """Checks every value that routing depends on."""
        for name in ("hidden_size", "num_experts", "expert_width", "num_groups", "group_topk"):
            check(self, name, getattr(self, name) >= 1, "must be at least 1")
        check(self, "num_shared_experts", self.num_shared_experts >= 0, "must not be negative")
        known = self.score_function in SCORE_FUNCTIONS
        check(self, "score_function", known, f"must be one of {', '.join(SCORE_FUNCTIONS)}")
        divides = self.num_experts % self.num_groups == 0
        check(self, "num_groups", divides, f"must divide num_experts={self.num_experts}")
        fits = self.group_topk <= self.num_groups
        check(self, "group_topk", fits, f"must not exceed num_groups={self.num_groups}")
        selectable = self.group_topk * (self.num_experts // self.num_groups)
        rule = f"must be 1 to {selectable}, the number of experts that can be selected"
        check(self, "topk", 1 <= self.topk <= selectable, rule)

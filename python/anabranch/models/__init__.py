# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Language models: pure functions over a tree of parameters."""

from anabranch.models.config import Config
from anabranch.models.counting import Counts, count_parameters, flops_per_token
from anabranch.models.model import (
    init,
    is_decayed,
    is_expert,
    logits,
    loss,
    update_expert_bias,
)

__all__ = [
    "Config",
    "Counts",
    "count_parameters",
    "flops_per_token",
    "init",
    "is_decayed",
    "is_expert",
    "logits",
    "loss",
    "update_expert_bias",
]

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Operations in which the devices of a mesh axis take part together."""

from anabranch.ops.expert_parallel.calls import ExpertParallelPlan
from anabranch.ops.expert_parallel.group import ExpertParallel

__all__ = ["ExpertParallel", "ExpertParallelPlan"]

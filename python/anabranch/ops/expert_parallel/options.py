# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What the attributes of an ``ExpertParallel`` may be."""

from __future__ import annotations

from typing import Any

OVERFLOWS = ("error", "grow", "drop")
COMBINE_MODES = ("exact", "two_level")
WIRES = ("bf16", "mxfp8")
MAX_WAVES = 64


def check_options(group: Any) -> None:
    """ValueError unless every attribute of an ``ExpertParallel`` is one that it may have."""

    def check(name: str, good: bool, rule: str) -> None:
        if not good:
            raise ValueError(f"ExpertParallel: {name}={getattr(group, name)!r}; {rule}")

    check("num_experts", group.num_experts >= 1, "must be at least 1")
    check("topk", 1 <= group.topk <= min(256, group.num_experts), "must be 1 to num_experts, 256")
    worst = group.capacity == "worst"
    whole = isinstance(group.capacity, int) and group.capacity >= 0
    check("capacity", worst or whole, "must be 'worst' or a number of rows")
    check("overflow", group.overflow in OVERFLOWS, f"must be one of {', '.join(OVERFLOWS)}")
    check(
        "combine_mode",
        group.combine_mode in COMBINE_MODES,
        f"must be one of {', '.join(COMBINE_MODES)}",
    )
    check("domain_size", group.domain_size >= 1, "must be at least 1")
    check("chunks", group.chunks >= 1, "must be at least 1")
    check("waves", 1 <= group.waves <= MAX_WAVES, f"must be 1 to {MAX_WAVES}")
    check("wire", group.wire in WIRES, f"must be one of {', '.join(WIRES)}")
    known = group.transport in ("auto", "inprocess", "mpi")
    check("transport", known, "this version has 'auto', 'inprocess' and 'mpi'")
    check("alignment", group.alignment >= 1, "must be at least 1")
    fits = group.rank_of_expert is None or len(group.rank_of_expert) == group.num_experts
    check("rank_of_expert", fits, f"must have num_experts={group.num_experts} entries")

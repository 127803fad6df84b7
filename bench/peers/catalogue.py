# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Who is measured: every way to run the yardstick step, and the routed layer alone."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Peer:
    """One configuration of one program.

    `environment` is "ours" or a name of environments.REQUIREMENTS, `worker` the script that runs there. `kind` is
    "step" or "ffn". `sequences` of 512 tokens make one batch. `family` groups the rows that a bar speaks of; "" is
    none. `like` names our row of the same type, tokens and recomputation, `ours` our row with its default settings
    on the same tokens. `loop`: PyTorch's experts one after the other.
    """

    name: str
    environment: str
    worker: str
    dtype: str
    what: str
    kind: str = "step"
    sequences: int = 4
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    family: str = ""
    dropless: bool = True
    warmup: int = 1
    steps: int = 3
    ours: str = ""
    like: str = ""
    loop: bool = False


def _maxtext(path: str, dtype: str, tokens: int, *, remat: str = "full", steps: int = 2) -> Peer:
    options, family, what = {
        "ragged_dot": ({"sparse_matmul": "true", "megablox": "false"}, "ragged_dot", "ragged_dot"),
        "dense": (
            {"sparse_matmul": "false", "capacity_factor": -1},
            "dense",
            "dense, every expert on every token",
        ),
        "capacity1.0": (
            {"sparse_matmul": "false", "capacity_factor": 1.0},
            "capacity",
            "capacity 1.0",
        ),
        "capacity1.25": (
            {"sparse_matmul": "false", "capacity_factor": 1.25},
            "capacity",
            "capacity 1.25",
        ),
    }[path]
    suffix = "" if remat == "full" else f"-{remat}"
    note = "full remat, its default" if remat == "full" else f"remat_policy={remat}"
    return Peer(
        name=f"maxtext-{path}-{dtype}-{tokens}{suffix}",
        environment="maxtext",
        worker="maxtext_worker.py",
        dtype=dtype,
        what=f"MaxText, {what}; {note}",
        sequences=tokens // 512,
        options=options | ({} if remat == "full" else {"remat_policy": remat}),
        # A bar is about stock MaxText: a changed default is shown, but is a row of its own.
        family=f"maxtext-{family}" if remat == "full" else "",
        dropless=family != "capacity",
        steps=steps,
        ours=f"ours-bf16-{tokens}",
        like=f"ours-{dtype}-{tokens}" + ("-remat" if remat == "full" else ""),
    )


def _ours(dtype: str, tokens: int, *, remat: bool = False) -> Peer:
    return Peer(
        name=f"ours-{dtype}-{tokens}" + ("-remat" if remat else ""),
        environment="ours",
        worker="anabranch_worker.py",
        dtype=dtype,
        what="Anabranch" + (", full remat" if remat else ""),
        sequences=tokens // 512,
        options={"remat": "full"} if remat else {},
        warmup=1,
        steps=5,
    )


def _ffn(who: str, rows: int, shape: dict[str, int]) -> Peer:
    ours, loop = who == "ours", who == "torch-loop"
    theirs = "a loop over experts in PyTorch" if loop else "`F.grouped_mm`"
    return Peer(
        name=f"{who}-ffn-{rows}",
        environment="ours" if ours else "torch",
        worker="anabranch_worker.py" if ours else "torch_worker.py",
        dtype="bf16",
        what="routed layer alone, " + ("`ab.moe_ffn`" if ours else theirs),
        kind="ffn",
        options=shape,
        warmup=2,
        steps=7,
        ours="" if ours else f"ours-ffn-{rows}",
        like="" if ours else f"ours-ffn-{rows}",
        loop=loop,
    )


_LAYER = {"H": 2048, "F": 1408, "E": 64, "k": 6}

PEERS = {
    peer.name: peer
    for peer in (
        *(
            _ours(dtype, n, remat=r)
            for dtype in ("bf16", "f32")
            for n in (2048, 512)
            for r in (0, 1)
        ),
        _maxtext("ragged_dot", "bf16", 512),
        _maxtext("ragged_dot", "f32", 512),
        _maxtext("dense", "bf16", 2048),
        _maxtext("dense", "f32", 2048),
        _maxtext("dense", "f32", 512, steps=3),
        _maxtext("capacity1.0", "bf16", 2048, steps=3),
        _maxtext("capacity1.0", "f32", 2048, steps=3),
        _maxtext("capacity1.25", "bf16", 2048, steps=3),
        _maxtext("capacity1.25", "f32", 2048, steps=3),
        _maxtext("capacity1.0", "f32", 2048, remat="minimal", steps=3),
        Peer(
            name="transformers-grouped_mm-bf16-2048",
            environment="torch",
            worker="torch_worker.py",
            dtype="bf16",
            what="Transformers, `grouped_mm` experts, fused AdamW; all in bf16, moments too",
            options={"experts": "grouped_mm"},
            family="transformers",
            warmup=1,
            steps=5,
            ours="ours-bf16-2048",
            like="ours-bf16-2048",
        ),
        *(
            _ffn(who, tokens * 6, _LAYER | {"T": tokens})
            for who in ("ours", "torch", "torch-loop")
            for tokens in (2048, 512)
        ),
    )
}

# What a comparison takes when none is named, and the short list of `--quick`.
ALL = tuple(name for name, peer in PEERS.items() if peer.ours)
QUICK = ("maxtext-capacity1.0-f32-2048", "transformers-grouped_mm-bf16-2048", "torch-ffn-3072")


@dataclasses.dataclass(frozen=True)
class Bar:
    """Our throughput must be `ratio` times that of the fastest row of `families`."""

    what: str
    families: tuple[str, ...]
    ratio: float


BARS = (
    Bar("MaxText's best dropless path", ("maxtext-dense", "maxtext-ragged_dot"), 10.0),
    Bar("MaxText's best path that drops tokens", ("maxtext-capacity",), 4.5),
    Bar("MaxText's `ragged_dot` path", ("maxtext-ragged_dot",), 40.0),
    Bar("Transformers with `grouped_mm`", ("transformers",), 2.0),
)
MEMORY_BAR = 0.6  # of what MaxText's path with capacity 1.0 keeps resident

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What a training run is made of, as frozen dataclasses whose field names are the `--set` paths."""

from __future__ import annotations

import dataclasses

from anabranch.layers.config import check
from anabranch.models.config import Config
from anabranch.ops.expert_parallel.options import WIRES
from anabranch.recipes.precision import PrecisionConfig


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The optimisation of one run.

    A step takes `batch_size` sequences of `sequence_length` tokens, in `microbatches` equal parts.
    `schedule` "cosine" falls from `learning_rate` to `min_learning_rate_ratio` of it over all
    steps; "wsd" stays constant and falls linearly to that over the last `decay_fraction` of them.
    Sums over tokens are taken over a binary tree of `reduction_leaves` leaves (`anabranch.ops.token_tree`).
    `optimizer` is "adamw", or "muon" for Muon on matrices between embedding and output and AdamW on the rest.
    AdamW's constants are those of DeepSeek-V3 (arXiv 2412.19437). Periods (`*_every`) are in steps, 0 for never.
    """

    batch_size: int = 16
    sequence_length: int = 256
    steps: int = 100
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    min_learning_rate_ratio: float = 0.1
    schedule: str = "cosine"
    warmup_steps: int = 10
    decay_fraction: float = 0.2
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    gradient_clip: float = 1.0
    microbatches: int = 1
    seed: int = 0
    checkpoint_every: int = 0
    keep_checkpoints: int = 2
    log_every: int = 1
    eval_every: int = 0
    eval_batches: int = 8
    reduction_leaves: int = 8
    tensorboard: bool = False

    def __post_init__(self) -> None:
        """Checks every value."""
        for name in (
            "batch_size",
            "sequence_length",
            "microbatches",
            "log_every",
            "reduction_leaves",
        ):
            check(self, name, getattr(self, name) >= 1, "must be at least 1")
        for name in ("steps", "warmup_steps", "checkpoint_every", "keep_checkpoints", "eval_every"):
            check(self, name, getattr(self, name) >= 0, "must not be negative")
        leaves = self.reduction_leaves
        rule = "must be a power of two up to 64"
        check(self, "reduction_leaves", leaves <= 64 and leaves & (leaves - 1) == 0, rule)
        check(self, "schedule", self.schedule in ("cosine", "wsd"), "must be cosine or wsd")
        check(self, "optimizer", self.optimizer in ("adamw", "muon"), "must be adamw or muon")
        divides = self.batch_size % self.microbatches == 0
        check(self, "microbatches", divides, f"must divide batch_size={self.batch_size}")
        for name in ("decay_fraction", "min_learning_rate_ratio", "beta1", "beta2"):
            check(self, name, 0 <= getattr(self, name) <= 1, "must be 0 to 1")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the text comes from: `path` is a token store, "" the cached standard-library corpus.

    `tokenizer` is "byte" or the path of a Hugging Face `tokenizer.json`.
    """

    path: str = ""
    tokenizer: str = "byte"


@dataclasses.dataclass(frozen=True)
class ParallelConfig:
    """How a run is spread: ranks, overlap waves, receive capacity per rank, dispatch chunks, wire format.

    Of `devices` ranks each `devices / data` neighbours hold all experts between them, and different
    groups of them train on different sequences.
    A rank's experts are exchanged and computed in `waves` groups. `capacity` bounds the rows that a rank
    receives at a time: "worst", as many as any routing can send, or a number; tokens are then taken in as
    many parts as that needs, and every token is served. `chunks` is the most parts, or more where `capacity`
    needs more; with "worst" a rank has room for one of them. On one rank these have no effect.
    `wire` is "bf16", or "mxfp8": rows of tokens, and of gradients, are rounded to it on their way to their
    experts, on one rank too.
    """

    devices: int = 1
    data: int = 1
    waves: int = 1
    capacity: str = "worst"
    chunks: int = 1
    wire: str = "bf16"

    def __post_init__(self) -> None:
        """Checks every value."""
        check(self, "wire", self.wire in WIRES, f"must be one of {', '.join(WIRES)}")
        check(self, "waves", 1 <= self.waves <= 64, "must be 1 to 64")
        check(self, "chunks", self.chunks >= 1, "must be at least 1")
        number = self.capacity.isdecimal() and int(self.capacity) >= 1
        rule = "must be 'worst' or a number of rows"
        check(self, "capacity", number or self.capacity == "worst", rule)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One complete, resumable description of a model and how it is trained."""

    name: str
    description: str
    model: Config = Config()
    train: TrainConfig = TrainConfig()
    data: DataConfig = DataConfig()
    parallel: ParallelConfig = ParallelConfig()
    precision: PrecisionConfig = PrecisionConfig()

    def __post_init__(self) -> None:
        """Checks what two parts have to agree on."""
        low = any(self.precision.layers(self.model.num_layers))
        if low and self.model.dtype != "bfloat16":
            raise ValueError(
                f"precision.recipe={self.precision.recipe!r}: needs model.dtype bfloat16, not "
                f"{self.model.dtype}"
            )

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Shapes of the attention block and of the rotary embedding, as frozen dataclasses."""

from __future__ import annotations

import dataclasses
import math


def check(config: object, name: str, condition: bool, rule: str) -> None:
    """Raises ValueError naming a field of `config`, its value and the rule unless `condition`."""
    if not condition:
        raise ValueError(f"{name}={getattr(config, name)!r}: {rule}")


@dataclasses.dataclass(frozen=True)
class RotaryConfig:
    """Rotary embedding (arXiv 2104.09864) with the YaRN extension (arXiv 2309.00071).

    `factor` 1 is the plain embedding. Otherwise the context is stretched from `original_length`
    tokens by `factor`; `mscale` and `mscale_all_dim` are DeepSeek's names for the two temperature
    coefficients (see `anabranch.layers.rotary`).
    """

    theta: float = 10_000.0
    factor: float = 1.0
    original_length: int = 4096
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 1.0

    def __post_init__(self) -> None:
        """Checks every value."""
        check(self, "theta", self.theta > 1, "must be above 1")
        check(self, "factor", self.factor >= 1, "must be at least 1")
        check(self, "original_length", self.original_length > 0, "must be positive")


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """Heads of one attention block.

    kind "mla" is multi-head latent attention (arXiv 2405.04434): `q_lora_rank` (0 projects the
    query directly), `kv_lora_rank`, and per head `nope_head_size` + `rope_head_size` for query
    and key and `value_head_size` for the value. kind "gqa" is grouped-query attention (arXiv 2305.13245):
    `num_kv_heads` heads of `head_size`, and `qk_norm` "none", "head" (per head, Qwen3) or "full"
    (over all heads together, OLMoE). Fields of the other kind are ignored.
    """

    kind: str = "mla"
    num_heads: int = 8
    num_kv_heads: int = 8
    head_size: int = 64
    qk_norm: str = "none"
    q_lora_rank: int = 0
    kv_lora_rank: int = 128
    nope_head_size: int = 64
    rope_head_size: int = 32
    value_head_size: int = 64

    def __post_init__(self) -> None:
        """Checks every value."""
        check(self, "kind", self.kind in ("mla", "gqa"), 'must be "mla" or "gqa"')
        norms = ("none", "head", "full")
        check(self, "qk_norm", self.qk_norm in norms, f"must be one of {', '.join(norms)}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int):
                least = 0 if field.name == "q_lora_rank" else 1
                check(self, field.name, value >= least, f"must be at least {least}")
        shared = self.kind == "mla" or self.num_heads % self.num_kv_heads == 0
        check(self, "num_heads", shared, f"must be a multiple of num_kv_heads={self.num_kv_heads}")
        rotary = "rope_head_size" if self.kind == "mla" else "head_size"
        check(self, rotary, self.rotary_size % 2 == 0, "must be even, for the rotary embedding")

    @property
    def rotary_size(self) -> int:
        """Elements of each query and key head that the rotary embedding turns."""
        return self.rope_head_size if self.kind == "mla" else self.head_size

    @property
    def query_key_size(self) -> int:
        """Elements of one query (and key) head."""
        if self.kind == "mla":
            return self.nope_head_size + self.rope_head_size
        return self.head_size

    @property
    def value_size(self) -> int:
        """Elements of one value head."""
        return self.value_head_size if self.kind == "mla" else self.head_size


def yarn_temperature(factor: float, coefficient: float) -> float:
    """YaRN's temperature 0.1 * coefficient * ln(factor) + 1; 1 when nothing is stretched."""
    return 1.0 if factor <= 1.0 else 0.1 * coefficient * math.log(factor) + 1.0

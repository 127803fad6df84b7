# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""How a step is spread over accelerators: the text form, its defaults and its rules."""

from __future__ import annotations

import dataclasses
import difflib
import re
from typing import Any

from anabranch.errors import UsageError

FORMATS = {"bf16": 0, "fp8": 1, "mxfp8": 2, "mxfp8_hybrid": 2, "fp8_block": 3, "nvfp4": 4}
SHARDINGS = {"none": 0, "zero1": 1, "fsdp": 3}
PIPELINES = {"1f1b": 0, "interleaved": 1, "dualpipe": 2}
GRAPHS = {"none": 0, "partial": 1, "full": 2}
OPTIMIZERS = {"adamw": 0, "muon": 1}
# Bytes of state for a parameter: an f32 master weight, and two f32 moments or one.
STATE_BYTES = {"adamw": 12.0, "muon": 8.0}
# Tensors of a layer that can be computed again or kept on the host, and their bits in the engine.
TENSORS = {
    "norm": 1, "attention": 2, "latent": 4, "dense_ffn": 8, "shared_expert": 16, "expert_input": 32,
    "expert_hidden": 64, "expert_activation": 128, "full": 256, "optimizer": 512,
}  # fmt: skip
# Names of other programs for the same tensors.
TENSOR_ALIASES = {
    "core_attn": "attention", "layernorm": "norm", "mla_up_proj": "latent", "mlp": "dense_ffn",
    "shared_experts": "shared_expert", "moe_act": "expert_activation", "moe_mlpwi": "expert_hidden",
}  # fmt: skip
# What `recompute=auto` tries, cheapest first: recomputed FLOPs against bytes saved.
RECOMPUTE_LADDER = (
    "",
    "norm+expert_activation",
    "norm+expert_activation+latent",
    "norm+expert_activation+latent+dense_ffn+shared_expert",
    "norm+expert_activation+latent+dense_ffn+shared_expert+expert_hidden+attention",
    "full",
)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Degrees of parallelism and what goes with them.

    `fsdp` 0 leaves `sharding` as it is; a number is the data-parallel degree over which parameters
    are sharded, checked against the ranks that are left. `mbs` 0 is one sequence a microbatch, with
    fsdp a rank's whole share of the batch (no gradient accumulation). `overlap` None: see `overlaps`.
    `optimizer` "" is the recipe's; `optimizer_bytes` None its f32 master weight and moments.
    `recompute` and `offload` are names of TENSORS joined by "+"; "auto" takes the first of
    RECOMPUTE_LADDER that fits.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    vp: int = 1
    ep: int = 1
    dp: int = 0
    fsdp: int = 0
    edp: int = 0
    etp: int = 1
    mbs: int = 0
    sharding: str = "zero1"
    pipeline: str = ""
    overlap: bool | None = None
    shared_overlap: bool = False
    split_wgrad: bool | None = None
    fused_dispatch: bool = True
    dedup: bool = True
    node_limit: int = 0
    wire: str = "bf16"
    streams: str = "multi"
    graph: str = "partial"
    recompute: str = "auto"
    offload: str = ""
    fp8_attention: bool = False
    mtp: int = 0
    gradient_bytes: float = 4.0
    optimizer: str = ""
    optimizer_bytes: float | None = None
    dispatch_factor: float = 0.0

    @property
    def overlaps(self) -> bool:
        """Whether dispatch and combine run under another microbatch's compute.

        Unless asked for it is assumed where frameworks turn it on: with virtual stages and in DualPipe.
        Whole blocks that are computed again rule it out.
        """
        if self.overlap is not None:
            return self.overlap
        paired = self.vp > 1 or self.pipeline == "dualpipe"
        return self.ep > 1 and paired and "full" not in self.recompute

    @property
    def state_bytes(self) -> float:
        """Bytes of optimizer state for a parameter."""
        if self.optimizer_bytes is not None:
            return self.optimizer_bytes
        return STATE_BYTES[self.optimizer or "adamw"]

    def describe(self) -> str:
        """The layout in the short form that `parse` reads."""
        degrees = [f"{k}{getattr(self, k)}" for k in ("tp", "cp", "pp", "vp", "ep")]
        parts = [d for d in degrees if not re.fullmatch(r"[a-z]+1", d)]
        if self.sharding == "fsdp":
            parts.append("fsdp")
        if self.pipeline == "dualpipe":
            parts.append("dualpipe")
        if self.overlap is not None and self.ep > 1:
            parts.append(f"overlap={'on' if self.overlap else 'off'}")
        if self.mbs:
            parts.append(f"mbs{self.mbs}")
        if self.optimizer == "muon":
            parts.append("optimizer=muon")
        return ",".join(parts) or "dp"


def parse(text: str, options: str = "", base: Layout | None = None) -> Layout:
    """Reads "pp4,vp4,ep64" and options "overlap=on;recompute=latent+norm".

    Both take both forms: NAME NUMBER, NAME=VALUE, and the words zero0, zero1, fsdp, 1f1b,
    interleaved, dualpipe. UsageError for an unknown name or value.
    """
    changes: dict[str, Any] = {}
    for word in filter(None, re.split(r"[,;\s]+", f"{text},{options}".strip().lower())):
        changes |= _word(word)
    return dataclasses.replace(base or Layout(), **changes)


def _word(word: str) -> dict[str, Any]:
    if word in PIPELINES:
        return {"pipeline": word}
    if word in ("zero0", "ddp"):
        return {"sharding": "none"}
    if word in ("zero1", "zero2"):
        return {"sharding": "zero1"}
    if word in ("fsdp", "zero3"):
        return {"sharding": "fsdp"}
    if match := re.fullmatch(r"([a-z_]+?)=?(\d+)", word):
        name = {"vpp": "vp", "mtp_layers": "mtp"}.get(match[1], match[1])
        value = int(match[2])
        if name == "fsdp":
            return {"fsdp": value, "sharding": "fsdp"}
        if name in _INTEGERS:
            if value < 1 and name not in ("mtp", "node_limit"):
                raise UsageError(f"--layout {word}: must be at least 1")
            return {name: value}
    name, separator, value = word.partition("=")
    if not separator:
        name, value = word, "on"
    return {name: _value(word, name, value)}


_INTEGERS = ("tp", "cp", "pp", "vp", "ep", "dp", "edp", "etp", "mbs", "node_limit", "mtp")
_SWITCHES = (
    "overlap", "shared_overlap", "split_wgrad", "fused_dispatch", "dedup", "fp8_attention",
)  # fmt: skip
_NUMBERS = ("gradient_bytes", "optimizer_bytes", "dispatch_factor")
_CHOICES = {
    "sharding": SHARDINGS, "pipeline": PIPELINES, "graph": GRAPHS, "wire": {"bf16": 0, "fp8": 1},
    "streams": {"multi": 0, "single": 1}, "optimizer": OPTIMIZERS,
}  # fmt: skip
# Every word that begins a part of a layout.
WORDS = (*_INTEGERS, *_SWITCHES, *_NUMBERS, *_CHOICES, *PIPELINES, "fsdp", "zero0", "zero1",
         "recompute", "offload")  # fmt: skip


def _value(word: str, name: str, value: str) -> Any:
    if name in _SWITCHES:
        words = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
        if value not in words:
            raise UsageError(f"--layout {word}: must be on or off")
        return words[value]
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise UsageError(f"--layout {word}: must be one of {', '.join(_CHOICES[name])}")
        return value
    if name in _NUMBERS:
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 <= number < 1e6:
            raise UsageError(f"--layout {word}: must be a number from 0")
        return number
    if name in ("recompute", "offload"):
        return tensors(name, value)
    near = difflib.get_close_matches(name, WORDS, n=3, cutoff=0.4) or WORDS
    raise UsageError(f"--layout {word}: unknown word; nearest: {', '.join(near)}")


def tensors(what: str, text: str) -> str:
    """Checks names of tensors joined by "+" and returns them under the names of TENSORS."""
    if text in ("", "none", "auto"):
        return "" if text == "none" else text
    found = []
    for name in text.split("+"):
        name = TENSOR_ALIASES.get(name, name)
        if name not in TENSORS or (what == "recompute" and name == "optimizer"):
            raise UsageError(f"{what}={text}: {name!r} is none of {', '.join(TENSORS)}")
        found.append(name)
    return "+".join(found)


def mask(text: str) -> int:
    """The engine's bits of names joined by "+"."""
    return sum(TENSORS[name] for name in dict.fromkeys(text.split("+")) if name)


def check(layout: Layout, ranks: int) -> None:
    """Degrees that follow from others must agree with them; UsageError says which do not."""
    block = layout.tp * layout.cp * layout.pp
    if ranks % block:
        raise UsageError(f"layout: tp * cp * pp = {block} does not divide the {ranks} accelerators")
    data = ranks // block
    if layout.dp and layout.dp != data:
        raise UsageError(f"layout: dp={layout.dp}, but {ranks} / {block} = {data} are left for it")
    experts = ranks // layout.pp
    if layout.fsdp and layout.fsdp not in (data, data * layout.cp, experts // layout.ep):
        raise UsageError(
            f"layout: fsdp={layout.fsdp}, but data parallelism is {data} wide"
            f" and {experts // layout.ep} beside ep={layout.ep}"
        )
    if layout.edp and layout.edp * layout.ep != experts:
        raise UsageError(f"layout: edp * ep = {layout.edp * layout.ep}, must be {experts}")
    if layout.etp != 1:
        raise UsageError(f"layout: etp={layout.etp}: experts are not split over tp; must be 1")


def fields(layout: Layout, ranks: int, recipe: str, batch: int, sequence: int) -> dict[str, float]:
    """The layout under the engine's names; `recompute` must not be "auto" any more."""
    check(layout, ranks)
    pipeline = layout.pipeline or ("interleaved" if layout.vp > 1 else "1f1b")
    split = layout.overlaps if layout.split_wgrad is None else layout.split_wgrad
    return {
        "ranks": ranks,
        "tp": layout.tp,
        "cp": layout.cp,
        "pp": layout.pp,
        "vp": layout.vp,
        "ep": layout.ep,
        "sharding": SHARDINGS[layout.sharding],
        "batch": batch,
        "microbatch": layout.mbs,
        "sequence": sequence,
        "pipeline": PIPELINES[pipeline],
        "format": FORMATS[recipe],
        "fp8_attention": int(layout.fp8_attention),
        "overlap": int(layout.overlaps),
        "shared_overlap": int(layout.shared_overlap),
        "split_wgrad": int(split),
        "fused_dispatch": int(layout.fused_dispatch),
        "dedup": int(layout.dedup),
        "node_limit": layout.node_limit,
        "low_wire": int(layout.wire == "fp8"),
        "single_stream": int(layout.streams == "single"),
        "graph": GRAPHS[layout.graph],
        "recompute": mask(layout.recompute),
        "offload": mask(layout.offload),
        "gradient_bytes": layout.gradient_bytes,
        "optimizer": OPTIMIZERS[layout.optimizer or "adamw"],
        "optimizer_bytes": layout.state_bytes,
        "dispatch_factor": layout.dispatch_factor,
    }

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Published claims about DeepSeek-V3 on NVIDIA GB300, simulated: `python -m anabranch.planner.replay`.

The claims: 103 to 1,068 TFLOP/s and GPU on 128 GPUs by grouped products, multi-stream collectives,
MXFP8, activation offload and NCCL's expert parallelism, in this order; and 97 % (JAX) or 98.5 %
(Megatron Core) of the speed at 256 GPUs left at 1,024 (NVIDIA technical blogs of 2026-09-14 and
2026-07-21). docs/planner.md discusses what comes out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from anabranch.planner import present, scaling, scenario, simulate

_MODEL = "deepseek-v3-671b"
# No measured row has this stack, so the kernel tables stand alone; Megatron's calibration is not JAX's.
_STACK = "maxtext"
# 128 GPUs, fsdp 16 x ep 8, six sequences of 4,096 a GPU, one microbatch; bf16 first moments.
_BASE = "fsdp16,ep8,mbs6,optimizer_bytes=10"
# Before the first step of the ladder the text defines nothing. Ours: every block computed again, one
# stream for all collectives, plain all-to-all with a copy for each expert, and batched products.
_PLAIN = "recompute=full,streams=single,dedup=off,fused_dispatch=off"
# The published policy: gate and up to the host; queries, keys, values, and what has no name, again.
_OFFLOAD = "recompute=norm+latent+expert_input+expert_activation,offload=expert_hidden"
_STEPS: tuple[tuple[str, str, str, str], ...] = (
    ("start: batched products", "bf16", _PLAIN, "grouped_efficiency=0.83x"),
    ("grouped products", "bf16", _PLAIN, ""),
    ("multi-stream collectives", "bf16", _PLAIN.replace("single", "multi"), ""),
    ("MXFP8", "mxfp8", _PLAIN.replace("single", "multi"), ""),
    ("activation offload", "mxfp8", f"{_OFFLOAD},dedup=off,fused_dispatch=off", ""),
    ("one copy a rank, permuted on the way", "mxfp8", _OFFLOAD, ""),
)  # fmt: skip
# Where along the ladder collectives of several kinds get streams of their own: accelerators, layout,
# recipe, options.
_STREAMS = (
    ("bf16, grouped products", 128, _BASE, "bf16", _PLAIN),
    ("MXFP8", 128, _BASE, "mxfp8", _PLAIN),
    ("the end of the ladder", 128, _BASE, "mxfp8", _OFFLOAD),
    ("the same, fsdp 128 on 1,024", 1024, _BASE.replace("fsdp16", "fsdp128"), "mxfp8", _OFFLOAD),
    ("a sixth of the tokens a GPU and step", 128, _BASE.replace("mbs6", "mbs1"), "mxfp8", _OFFLOAD),
)
_SCALING = (
    ("JAX, fsdp x ep8", "fsdp,ep8,mbs6,optimizer_bytes=10", _OFFLOAD, 6),
    ("Megatron, pp2 vp8 ep32", "pp2,vp8,ep32,mbs1,mtp1,graph=full,fp8_attention", "", 16),
)  # fmt: skip


def ladder() -> list[tuple[str, dict[str, Any]]]:
    """The published order of additions, each simulated on 128 GB300."""
    rows = []
    for name, recipe, words, what_if in _STEPS:
        one = scenario.make(model=_MODEL, hw="gb300:128", recipe=recipe, layout_text=_BASE,
                            options=words, batch=768, what_if=what_if, stack=_STACK)  # fmt: skip
        rows.append((name, simulate.simulate(one)))
    return rows


def streams() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each place of `_STREAMS` with one stream for all collectives, and with one for each kind."""
    rows = []
    for name, ranks, words, recipe, more in _STREAMS:
        share = 1 if "mbs1" in words else 6
        plain = more.replace("streams=single,", "")
        single, multi = (
            simulate.simulate(
                scenario.make(model=_MODEL, hw=f"gb300:{ranks}", recipe=recipe, layout_text=words,
                              options=f"{plain},streams={kind}", batch=share * ranks, stack=_STACK)
            )
            for kind in ("single", "multi")
        )  # fmt: skip
        rows.append((name, single, multi))
    return rows


def weak_scaling(jitter: float, seeds: int) -> list[tuple[str, dict[str, Any]]]:
    """256 to 1,024 GB300 for the JAX and the Megatron layout."""
    rows = []
    for name, words, more, share in _SCALING:
        one = scenario.make(model=_MODEL, hw="gb300:256", recipe="mxfp8", layout_text=words,
                            options=more, batch=256 * share, stack=_STACK)  # fmt: skip
        rows.append((name, scaling.scale(one, scaling.counts(256, 1024), jitter, seeds)))
    return rows


def main(arguments: Sequence[str]) -> int:
    """Prints the ladder, what streams gain along it, and weak scaling."""
    steps = ladder()
    print(present.trust(steps[0][1]["calibration"]))
    lines = [["128 x GB300, fsdp 16 x ep 8", "step s", "TFLOP/s", "gain", "ep", "dp", "offload",
              "recompute", "GiB", "fits"]]  # fmt: skip
    before = None
    for name, result in steps:
        total = result["step_seconds"]
        lines.append([
            name,
            f"{total:.2f}",
            f"{result['tflops_per_gpu']:.0f}",
            "-" if before is None else f"{before / total - 1:+.1%}",
            *(f"{result['exposed'][part] / total:.1%}" for part in ("ep", "dp", "offload")),
            f"{result['recompute_seconds'] / total:.1%}",
            f"{result['memory_gib_max_rank']:.0f}",
            "yes" if result["fits"] else "no",
        ])  # fmt: skip
        before = total
    print(present.grid(lines))
    lines = [
        ["streams of their own for collectives", "one s", "several s", "gain", "gathers exposed"]
    ]
    for name, single, multi in streams():
        one, many = single["step_seconds"], multi["step_seconds"]
        exposed = f"{single['exposed']['dp'] / one:.1%} -> {multi['exposed']['dp'] / many:.1%}"
        lines.append([name, f"{one:.2f}", f"{many:.2f}", f"{one / many - 1:+.1%}", exposed])
    print("\n" + present.grid(lines))
    for name, answer in weak_scaling(0.01, 20):
        print(f"\n{name}, jitter 1 %, 20 seeds")
        print(present.scaling(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

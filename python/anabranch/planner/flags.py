# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The layout in the words of MaxText and XLA, to paste.

Names are those of maxtext e591f30 (src/maxtext/configs) and openxla/xla dcf304b
(xla/debug_options_flags.cc).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_QUANTIZATION = {
    "bf16": "",
    "fp8": "te_fp8_currentscaling",
    "mxfp8": "te_mxfp8",
    "mxfp8_hybrid": "te_mxfp8",
    "nvfp4": "te_nvfp4",
}
_MODELS = {
    "deepseek-v3-671b": "deepseek3-671b",
    "deepseek-v2-lite": "deepseek2-16b",
    "mixtral-8x7b": "mixtral-8x7b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "kimi-k2": "kimi-k2-1t",
}
# Our tensors under MaxText's names for its custom rematerialisation policy.
_TENSORS = {
    "expert_hidden": ("moe_mlpwi_0", "moe_mlpwi_1"),
    "expert_activation": ("moe_mlpwo",),
    "dense_ffn": ("mlpwi_0", "mlpwi_1", "mlpwo"),
    "attention": ("context",),
    "latent": ("query_proj", "key_proj", "value_proj"),
}


def maxtext(result: Mapping[str, Any]) -> str:
    """MaxText arguments and XLA flags for the layout; a note for what has no counterpart."""
    plan = result["layout_full"]
    ranks = int(result["hardware"].rsplit(":", 1)[1])
    data = ranks // (plan["tp"] * plan["cp"] * plan["pp"])
    fsdp = plan["sharding"] == "fsdp"
    width = max(data // plan["ep"], 1)
    lines = [
        f"model_name={_MODELS.get(result['model'], result['model'])}",
        f"max_target_length={result['sequence']}",
        f"per_device_batch_size={result['batch'] / ranks:g}",
        f"ici_expert_parallelism={plan['ep']}",
        f"ici_tensor_parallelism={plan['tp']}",
        f"ici_context_parallelism={plan['cp']}",
        f"dcn_pipeline_parallelism={plan['pp']}",
        f"dcn_{'fsdp' if fsdp else 'data'}_parallelism={width}",
        "sparse_matmul=True",
        *_remat(plan),
    ]
    if plan["pp"] > 1:
        lines += [
            f"num_pipeline_microbatches={result['microbatches']:.0f}",
            f"num_pipeline_repeats={plan['vp']}",
        ]
    quantization = _QUANTIZATION.get(result["recipe"], "")
    if quantization:
        lines.append(f"quantization={quantization}")
    if plan["dispatch_factor"]:
        lines.append(f"ragged_buffer_factor={plan['dispatch_factor']:g}")
    notes = []
    if result["recipe"] == "fp8_block":
        notes.append("# MaxText has no 128-block FP8 recipe")
    if plan["pipeline"] == "dualpipe":
        notes.append("# MaxText has no DualPipe schedule")
    return (
        "\n".join(lines)
        + "\nXLA_FLAGS="
        + " ".join(_xla(plan))
        + "".join(f"\n{note}" for note in notes)
    )


def _remat(plan: Mapping[str, Any]) -> list[str]:
    named = {"remat": plan["recompute"], "offload": plan["offload"]}
    if plan["recompute"] == "full":
        return ["remat_policy=full"]
    lines = []
    for what, names in named.items():
        for tensor in filter(None, names.split("+")):
            lines += [f"{name}={what}" for name in _TENSORS.get(tensor, ())]
    if plan["offload"] and "optimizer" in plan["offload"]:
        lines.append("optimizer_memory_host_offload=True")
    return ["remat_policy=custom", *lines] if lines else ["remat_policy=minimal"]


def _xla(plan: Mapping[str, Any]) -> list[str]:
    found = ["--xla_gpu_enable_latency_hiding_scheduler=true"]
    if plan["overlap"] and plan["sharding"] == "fsdp":
        found.append("--xla_gpu_experimental_parallel_collective_overlap_limit=4")
    if plan["sharding"] == "fsdp":
        found += [
            "--xla_gpu_all_gather_combine_threshold_bytes=6442450944",
            "--xla_gpu_reduce_scatter_combine_threshold_bytes=201326592",
        ]
    if plan["graph"] != "none":
        found.append("--xla_gpu_enable_command_buffer=FUSION,CUBLAS,CUDNN,CUSTOM_CALL")
    if plan["offload"]:
        found.append("--xla_gpu_enable_pipelined_host_offloading=true")
    return found

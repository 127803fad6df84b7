# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Runs Transformers' DeepSeek-V3, or `grouped_mm` experts alone, on the job: `torch_worker.py JOB RESULT`."""

from __future__ import annotations

import os
from typing import Any

import ffn_inputs
import probe
import torch
from torch.nn import functional


def step(job: dict[str, Any]) -> dict[str, Any]:
    """Whole training steps in pure bf16: weights, gradients and moments, fused AdamW, no clipping."""
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    model = job["model"]
    config = DeepseekV3Config(
        vocab_size=model["vocab_size"],
        hidden_size=model["hidden_size"],
        intermediate_size=model["dense_width"],
        moe_intermediate_size=model["expert_width"],
        num_hidden_layers=model["num_layers"],
        first_k_dense_replace=model["num_dense_layers"],
        num_attention_heads=model["num_heads"],
        num_key_value_heads=model["num_heads"],
        n_shared_experts=model["num_shared_experts"],
        n_routed_experts=model["num_experts"],
        num_experts_per_tok=model["topk"],
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=model["scaling_factor"],
        q_lora_rank=model["q_lora_rank"],
        kv_lora_rank=model["kv_lora_rank"],
        qk_nope_head_dim=model["nope_head_size"],
        qk_rope_head_dim=model["rope_head_size"],
        v_head_dim=model["value_head_size"],
        rms_norm_eps=model["norm_epsilon"],
        initializer_range=model["init_scale"],
        max_position_embeddings=job["sequence_length"],
        tie_word_embeddings=False,
        use_cache=False,
    )
    config._attn_implementation = "sdpa"
    config._experts_implementation = job["options"]["experts"]
    torch.manual_seed(0)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[job["dtype"]]
    network = DeepseekV3ForCausalLM(config).to(dtype).train()
    optimizer = torch.optim.AdamW(
        network.parameters(),
        lr=job["learning_rate"],
        betas=(0.9, 0.95),
        weight_decay=0.1,
        fused=True,
    )
    tokens = torch.tensor(job["tokens"])
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    first = next(network.parameters()).detach().clone()
    clock = probe.Probe(job["warmup"])

    def run() -> float:
        optimizer.zero_grad(set_to_none=True)
        logits = network(input_ids=inputs).logits
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(job["warmup"] + job["steps"]):
        clock.step(run)
    result = clock.result(("torch", "transformers"))
    return result | {
        "parameters": sum(p.numel() for p in network.parameters()),
        "updated": not torch.equal(first, next(network.parameters())),
        "experts": network.config._experts_implementation,
    }


def ffn(job: dict[str, Any]) -> dict[str, Any]:
    """The routed experts alone, by `F.grouped_mm` or a loop: gather, experts, weighted combine, all gradients."""
    arrays = ffn_inputs.make(job["shape"])

    def tensor(array: Any, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.from_numpy(array).to(dtype).requires_grad_()

    x, weights = tensor(arrays.x), tensor(arrays.weights, torch.float32)
    # Gate and up in one product, as Transformers keeps them: [E, H, 2F].
    joined = torch.cat([torch.from_numpy(arrays.w_gate), torch.from_numpy(arrays.w_up)], 2)
    w_in, w_down = joined.to(torch.bfloat16).requires_grad_(), tensor(arrays.w_down)
    del joined
    y_grad = torch.from_numpy(arrays.y_grad).to(torch.bfloat16)
    slots = torch.from_numpy(arrays.ids).flatten().long()
    order = torch.argsort(slots, stable=True)
    token = order // arrays.ids.shape[1]
    counts = torch.bincount(slots, minlength=job["shape"]["E"])
    offsets = torch.cumsum(counts, 0).to(torch.int32)
    lengths = counts.tolist()

    def grouped(rows: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
        if not job["loop"]:
            return functional.grouped_mm(rows, matrices, offs=offsets)
        parts = zip(rows.split(lengths), matrices.unbind(), strict=True)
        return torch.cat([part @ matrix for part, matrix in parts])

    def forward() -> torch.Tensor:
        gate, up = grouped(x[token], w_in).chunk(2, -1)
        rows = grouped(functional.silu(gate) * up, w_down)
        weighted = rows * weights.flatten()[order].to(rows.dtype)[:, None]
        return torch.zeros_like(x).index_add(0, token, weighted)

    checked = ffn_inputs.check(arrays, forward().detach().float().numpy())
    leaves = (x, weights, w_in, w_down)

    def run() -> float:
        torch.autograd.grad(forward(), leaves, y_grad)
        return 0.0

    clock = probe.Probe(job["warmup"])
    for _ in range(job["warmup"] + job["steps"]):
        clock.step(run)
    return clock.result(("torch",)) | checked


def main() -> None:
    """Runs the job on every core this process may use."""
    job = probe.read_job()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    probe.write_result({"step": step, "ffn": ffn}[job["kind"]](job))


if __name__ == "__main__":
    main()

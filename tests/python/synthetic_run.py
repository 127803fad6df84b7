# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Makes run folders such as a training run leaves behind, with plausible numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

CONFIG: dict[str, Any] = {
    "name": "default",
    "description": "DeepSeek-V3-style dropless mixture of experts, a few minutes on two cores.",
    "model": {
        "vocab_size": 257, "num_layers": 6, "hidden_size": 256, "num_experts": 64, "topk": 8,
        "expert_width": 96, "score_function": "sigmoid", "rope_theta": 10000.0, "remat": "none",
    },
    "train": {
        "batch_size": 16, "sequence_length": 512, "steps": 600, "learning_rate": 3e-3,
        "warmup_steps": 30, "gradient_clip": 1.0, "seed": 0, "log_every": 5, "tensorboard": False,
    },
    "data": {"path": "", "tokenizer": "byte"},
    "parallel": {"devices": 1, "waves": 1, "capacity": "worst", "chunks": 1},
    "precision": {"recipe": "bf16", "overrides": ""},
}  # fmt: skip

STARTED: dict[str, Any] = {
    "event": "started", "time": "2026-11-29T18:00:00+0000", "version": "0.1.0", "isa": "avx512_bf16",
    "machine": {"cpu": "AMD EPYC 9R14", "cpus": 2, "memory_gib": 15.4, "python": "3.11.2"},
    "threads": 2, "peak_tflops": 0.412, "recipe": "default", "total_steps": 600,
    "resumed_from": None, "baselines": {"unigram": 4.713, "bigram": 3.582},
    "parameters": {"total": 31_234_048, "active": 7_101_312, "embedding": 131_584},
}  # fmt: skip

SAMPLE = '''    def close(self):
        """Close the connection and return the result of the list."""
        if self._closed is None:
            raise ValueError("<b>the file</b> & the 'state' is not a valid string")
        self._closed = True

    def test_parse(self):
        self.assertEqual(self.parser.parse("a < b"), [("a", "b")])
'''


def step_record(step: int, *, layers: int = 5, experts: int = 64, total: int = 600) -> dict:
    """One line of `metrics.jsonl`."""
    rng = np.random.default_rng(step)
    loss = 1.15 + 4.4 * math.exp(-step / 60) + 0.9 * math.exp(-step / 350) + rng.normal(0, 0.025)
    spread = 0.15 + 1.1 * math.exp(-step / 90)
    bias = np.random.default_rng(7).normal(0, 1, (layers, experts))
    load = np.exp(spread * bias + rng.normal(0, 0.1, (layers, experts)))
    load = np.rint(load / load.mean(axis=1, keepdims=True) * 1024).astype(int)
    if step < 60:
        load[0, 3:9] = 0
    warm = min(1.0, step / 30) * (0.55 + 0.45 * math.cos(math.pi * step / total))
    rate = 41_000 + rng.normal(0, 600) - 9000 * (step == 1)
    return {
        "step": step, "tokens": step * 8192, "loss": loss, "bits_per_byte": loss / math.log(2),
        "grad_norm": 0.4 + 6 * math.exp(-step / 25) + abs(rng.normal(0, 0.08)),
        "learning_rate": 3e-3 * warm, "step_seconds": 8192 / rate, "tokens_per_second": rate,
        "model_tflops": rate * 4.6e-6, "mfu": rate * 4.6e-6 / 0.412, "peak_tflops": 0.412,
        "rss_gib": 1.9 + 0.5 * (1 - math.exp(-step / 20)), "dropped_tokens": 0,
        "max_violation": (load.max(axis=1) / load.mean(axis=1) - 1).tolist(),
        "dead_experts": (load == 0).sum(axis=1).tolist(), "skipped_steps": 0,
        "expert_load": load.tolist(),
        "time_split": {"data": 0.004, "step": 8192 / rate, "other": 0.011},
    }  # fmt: skip


OPERANDS = ("fprop_x", "fprop_w", "dgrad_dy", "dgrad_w", "wgrad_x", "wgrad_dy")


def quantized_record(step: int, *, layers: int = 4) -> dict:
    """A step line under low precision, the first layer in bf16; noisier and flushing more with depth."""
    attention, gated = ("q_a", "q_b", "kv_a", "kv_b", "o"), ("w_gate", "w_up", "w_down")
    names = [f"attention.{name}" for name in attention] + [f"moe.{name}" for name in gated]
    rng, found = np.random.default_rng(step), []
    for layer in range(1, layers):
        depth = layer / layers
        products = [
            {
                "name": name,
                "sqnr_db": [
                    round(31.5 - 9 * depth * (op > 1) + rng.normal(0, 0.3), 2) for op in range(6)
                ],
                "saturated_share": [1e-4 * depth * (op == 2) for op in range(6)],
                "flushed_share": [
                    float(f"{10 ** (-5 + 4 * depth * (op > 1)):.4g}") for op in range(6)
                ],
            }
            for name in names
        ]
        found.append({"layer": layer, "products": products})
    shares = {"saturated_share": 1e-5, "flushed_share": 2e-3}
    return {**step_record(step), **shares, "quantized": {"operands": [*OPERANDS], "layers": found}}


def eval_record(step: int) -> dict[str, Any]:
    """A held-out evaluation after `step`."""
    loss = step_record(step)["loss"] + 0.05
    held_out = {"held_out_loss": loss, "held_out_bits_per_byte": loss / math.log(2)}
    return {"event": "eval", "step": step, **held_out}


def finished_run(steps: int = 600, every: int = 5) -> list[dict[str, Any]]:
    """All lines of a run that reached its end."""
    lines = [STARTED]
    for step in sorted({1, *range(every, steps + 1, every)}):
        lines.append(step_record(step, total=steps))
        if step % 100 == 0:
            lines += [eval_record(step), {"event": "sample", "step": step, "prompt": "    def ",
                                          "text": SAMPLE.removeprefix("    def ")}]  # fmt: skip
    totals = {"step": steps, "tokens": steps * 8192, "seconds": 0.2 * steps + 9}
    return [*lines, {"event": "finished", **totals}]


def write_run(
    folder: Path, lines: list[dict[str, Any]], config: dict[str, Any] | None = None
) -> Path:
    """Writes a run folder and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    return folder

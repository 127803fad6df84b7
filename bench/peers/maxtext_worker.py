# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Runs stock MaxText's own training loop on the job's tokens: `maxtext_worker.py JOB RESULT`.

Nothing of MaxText is replaced. Its synthetic batch gets the job's tokens in place of random ones, and its
compiled step is called through a wrapper that waits for the results and takes the time: the log's own
"seconds" lag, because dispatch is asynchronous.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"DECOUPLE_GCLOUD": "TRUE", "JAX_PLATFORMS": "cpu"}

import jax
import jax.numpy as jnp
import maxtext
import probe
from maxtext.input_pipeline import synthetic_data_processing
from maxtext.trainers.pre_train import train
from maxtext.utils import train_utils


def arguments(job: dict[str, Any], folder: str) -> list[str]:
    """MaxText's command line for the job's model; what is not named stays at its default."""
    model = job["model"]
    settings = {
        "run_name": "peer",
        "base_output_directory": folder,
        "model_name": "deepseek3-tiny",
        "override_model_config": "true",
        "base_emb_dim": model["hidden_size"],
        "base_num_decoder_layers": model["num_layers"],
        "first_num_dense_layers": model["num_dense_layers"],
        "base_num_query_heads": model["num_heads"],
        "base_num_kv_heads": model["num_heads"],
        "q_lora_rank": model["q_lora_rank"],
        "kv_lora_rank": model["kv_lora_rank"],
        "qk_nope_head_dim": model["nope_head_size"],
        "qk_rope_head_dim": model["rope_head_size"],
        "v_head_dim": model["value_head_size"],
        "base_mlp_dim": model["dense_width"],
        "base_moe_mlp_dim": model["expert_width"],
        "num_experts": model["num_experts"],
        "num_experts_per_tok": model["topk"],
        "shared_experts": model["num_shared_experts"],
        "vocab_size": model["vocab_size"],
        "max_target_length": job["sequence_length"],
        "per_device_batch_size": job["batch_size"],
        "dtype": {"bf16": "bfloat16", "f32": "float32"}[job["dtype"]],
        "weight_dtype": "float32",
        "learning_rate": job["learning_rate"],
        "warmup_steps_fraction": 0,
        "steps": job["warmup"] + job["steps"],
        "packing": "false",  # one document per sequence, as everywhere here
        "hardware": "cpu",
        "skip_jax_distributed_system": "true",
        "dataset_type": "synthetic",
        "enable_checkpointing": "false",
        "enable_tensorboard": "false",
        "attention": "dot_product",
        "use_tokamax_gmm": "false",
    }
    settings |= job["options"]
    base = Path(maxtext.__path__[0]) / "configs" / "base.yml"
    return ["maxtext", str(base), *(f"{key}={value}" for key, value in settings.items())]


class TimedStep:
    """MaxText's compiled step, which waits for its results and notes times, losses and parameters."""

    def __init__(self, step: Any, clock: probe.Probe) -> None:
        self._step = step
        self._probe = clock
        self.parameters = 0
        self.parameter_norms: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def __call__(self, state: Any, batch: Any) -> Any:
        """Runs one step, as MaxText's loop calls it."""
        self.parameters = self.parameters or count_parameters(state)
        outcome: list[Any] = []

        def run() -> float:
            outcome.append(jax.block_until_ready(self._step(state, batch)))
            return float(outcome[0][1]["scalar"]["learning/loss"])

        self._probe.step(run)
        norm = outcome[0][1]["scalar"]["learning/param_norm"]
        self.parameter_norms.append(float(norm))
        return outcome[0]


def count_parameters(state: Any) -> int:
    """Numbers in the model's parameters; moments and the state of random numbers do not count."""
    from flax import nnx

    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(state.model, nnx.Param)))


def main() -> None:
    """Runs the job."""
    job = probe.read_job()
    clock = probe.Probe(job["warmup"])
    steps: list[TimedStep] = []
    stock_jit, stock_init = (
        train_utils.jit_train_and_eval_step,
        synthetic_data_processing.SyntheticDataIterator.__init__,
    )

    def timed_jit(*args: Any, **kwargs: Any) -> tuple[TimedStep, Any]:
        train_step, eval_step = stock_jit(*args, **kwargs)
        steps.append(TimedStep(train_step, clock))
        return steps[-1], eval_step

    def same_tokens(self: Any, config: Any, mesh: Any) -> None:
        stock_init(self, config, mesh)
        tokens = jnp.asarray(job["tokens"], jnp.int32)
        if self.data[0].shape != tokens.shape:
            raise RuntimeError(f"MaxText's batch is {self.data[0].shape}, ours {tokens.shape}")
        self.data = (tokens, *self.data[1:])

    train_utils.jit_train_and_eval_step = timed_jit
    synthetic_data_processing.SyntheticDataIterator.__init__ = same_tokens
    with tempfile.TemporaryDirectory() as folder:
        command = arguments(job, folder)
        train.main(command)
    result = clock.result(("maxtext", "jax", "jaxlib", "flax", "optax"))
    norms = steps[0].parameter_norms
    command = [part for part in command if "/" not in part]
    probe.write_result(
        result
        | {
            "parameters": steps[0].parameters,
            "updated": norms[0] != norms[-1],
            "settings": command[1:],
        }
    )


if __name__ == "__main__":
    main()

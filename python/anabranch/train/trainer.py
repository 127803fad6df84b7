# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The training loop: from a recipe and a run folder to a trained model and its report."""

import io
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from anabranch import _agreement as processes
from anabranch import data, models
from anabranch.data.baselines import byte_model_baselines
from anabranch.errors import RunError, UsageError
from anabranch.recipes.recipe import Recipe
from anabranch.train import checkpoint, measure, metrics, report, run_folder
from anabranch.train.corpus import open_corpus, warn
from anabranch.train.evaluation import HeldOut
from anabranch.train.generation import Generator
from anabranch.train.machine import FreedMemory, return_freed_memory
from anabranch.train.meter import Meter, Position
from anabranch.train.metrics import MetricsLog, NoLog
from anabranch.train.prefetch import Prefetcher
from anabranch.train.progress import Progress
from anabranch.train.ranks import Ranks
from anabranch.train.step import (
    StepMetrics,
    TrainState,
    batch_shapes,
    first_non_finite,
    init_state,
    jit_step,
    keep_gradients,
    make_train_step,
)
from anabranch.train.stopping import stop_requested

# One bad batch is survived; five non-finite steps in a row do not heal by themselves.
NON_FINITE_LIMIT = 5

# What the sample at the end of a run continues: `def ` suits the default corpus, the empty prompt any.
SAMPLE_PROMPTS = ("def ", "")
SAMPLE_TOKENS = 160


class Interrupted(RunError):
    """A run that was asked to stop and did, with a checkpoint."""

    exit_code = 130


def run(
    recipe: Recipe, out_dir: Path, steps: int | None = None, resume: bool = False
) -> dict[str, Any]:
    """Trains `recipe` in the run folder `out_dir` up to step `steps` (default: the recipe's) and returns a summary.

    With `resume` it goes on from the newest good checkpoint, or from the start when there is none yet. Raises
    Interrupted after Ctrl-C or SIGTERM, RunError when five steps in a row were not finite, UsageError when data or
    checkpoint do not belong to the recipe.
    """
    total = recipe.train.steps if steps is None else steps
    progress = Progress(total, sys.stdout if processes.is_first() else io.StringIO())
    try:
        return Trainer(recipe, Path(out_dir), total, resume, progress).train()
    finally:
        progress.close()


class Trainer:
    """One run. What takes time before the first step is announced through `progress.phase`."""

    def __init__(
        self, recipe: Recipe, out_dir: Path, total_steps: int, resume: bool, progress: Progress
    ) -> None:
        """Opens the data, measures the machine, and builds or loads the state; writes nothing."""
        self.recipe, self.out_dir, self.total_steps = recipe, out_dir, total_steps
        self.progress, self.resume = progress, resume
        self.ranks = Ranks(recipe)
        self.checkpoints = out_dir / run_folder.CHECKPOINTS
        progress.phase("opening the corpus")
        self.store = processes.first_then_others("opening the corpus", lambda: open_corpus(recipe))
        self.baselines = byte_model_baselines(self.store)
        self.held_out = HeldOut(recipe, self.store, recipe.train.eval_batches)
        progress.phase("measuring the peak of this machine")
        self.machine = processes.from_first("measuring the peak", measure.description)
        progress.phase("loading the checkpoint" if resume else "initialising the model")
        self.state, self.position = self._initial_state()
        self.saved_step = self.position.step if resume else None
        train = recipe.train
        self.reader = data.BatchReader(
            self.store, "train", train.batch_size, train.sequence_length, train.seed,
            self.position.cursor,
        )  # fmt: skip
        self.meter = Meter(
            recipe,
            self.store.train.bytes_per_token,
            self.machine["peak_tflops"],
            metrics.seconds_until(out_dir, self.position.step) if resume else 0.0,
        )

    def _initial_state(self) -> tuple[TrainState, Position]:
        def build(seed: int) -> TrainState:
            return init_state(jax.random.key(seed), self.recipe)

        found = self._newest_checkpoint() if self.resume else None
        if self.resume:
            at = "no checkpoint yet, starting at" if found is None else "resuming at"
            self.progress.note(f"{at} step {found.step if found else 0}")
        if found is None:
            return self.ranks.place(build(self.recipe.train.seed)), Position()
        template = jax.eval_shape(build, self.recipe.train.seed)
        try:
            state = TrainState(
                checkpoint.restore(template.params, found.tensors("params")),
                checkpoint.restore(template.opt_state, found.tensors("optimizer")),
            )
        except checkpoint.CheckpointError as error:
            raise UsageError(f"{found.path} does not fit the recipe: {error}") from error
        return self.ranks.place(state), Position.from_scalars(found.scalars)

    def _newest_checkpoint(self) -> checkpoint.Checkpoint | None:
        """The one that the first process finds, in every process."""

        def find() -> int | None:
            found = checkpoint.newest_good(self.checkpoints, warn)
            return None if found is None else found.step

        step = processes.from_first("finding the checkpoint", find)
        return None if step is None else checkpoint.verify(self.checkpoints / f"step-{step}")

    def train(self) -> dict[str, Any]:
        """Runs to the last step and returns the summary that `anabranch train` prints."""
        done = processes.from_first("looking for the end", self._finished_already)
        if done is not None:
            return done
        if not processes.is_first():
            self._loop(NoLog())
            return {**self._finish(NoLog()), "report": ""}  # the first process writes it
        run_folder.write_recipe(self.out_dir, self.recipe)
        self.checkpoints.mkdir(exist_ok=True)
        resume_step = self.position.step if self.resume else None
        tensorboard = self.recipe.train.tensorboard
        with MetricsLog(self.out_dir, resume_step=resume_step, tensorboard=tensorboard) as log:
            log.write(self._started())
            try:
                self._loop(log)
                summary = self._finish(log)
            except RunError:
                report.write(self.out_dir)
                raise
        self.progress.phase("writing the report")
        return {**summary, "report": str(report.write(self.out_dir))}

    def _finished_already(self) -> dict[str, Any] | None:
        """The summary of a run that has nothing left to do, else None."""
        if not self.resume or self.position.step < self.total_steps:
            return None
        for record in metrics.read(self.out_dir):
            if record.get("event") == "finished" and record["step"] == self.position.step:
                return {**record, "report": str(report.write(self.out_dir))}
        return None

    def _started(self) -> dict[str, Any]:
        config, length = self.recipe.model, self.recipe.train.sequence_length
        return {
            "event": "started",
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            **self.machine,
            "recipe": self.recipe.name,
            "total_steps": self.total_steps,
            "resumed_from": self.position.step if self.resume else None,
            "parameters": models.count_parameters(config)._asdict(),
            "flops_per_token": models.flops_per_token(config, length),
            "train_tokens": self.store.train.num_tokens,
            "held_out_tokens": self.store.held_out.num_tokens,
            "baselines": self.baselines,
        }

    def _loop(self, log: MetricsLog) -> None:
        if self.position.step >= self.total_steps:
            return
        train = self.recipe.train
        self.progress.phase("compiling the training step")
        shapes = batch_shapes(train.batch_size, train.sequence_length)
        ranks = self.ranks
        step = ranks.spread(make_train_step(self.recipe, ranks.tree, ranks.expert_parallel))
        if ranks.count == 1:
            self.state = keep_gradients(self.state)
        step = jit_step(step).lower(self.state, ranks.place_batch(shapes)).compile()
        return_freed_memory()  # the compiler's
        freed = FreedMemory()
        batches = Prefetcher(self.reader)
        self.meter.start()
        try:
            with stop_requested() as stop:
                while self.position.step < self.total_steps:
                    self._step(step, batches, log)
                    freed.after_step()
                    self._between_steps(log)
                    stopping = processes.any_process("between steps", stop())
                    if stopping and self.position.step < self.total_steps:
                        self._interrupt(log)
        finally:
            batches.close()

    def _step(self, step: Callable[..., Any], batches: Prefetcher, log: MetricsLog) -> None:
        began = time.perf_counter()
        batch, cursor = batches.next()
        ready = time.perf_counter()
        with processes.step(self.position.step + 1):
            self.state, on_device = step(self.state, self.ranks.place_batch(batch))
            measured: StepMetrics = jax.device_get(on_device)
        self.meter.add(measured, ready - began, time.perf_counter() - ready)
        position = self.position
        position.step += 1
        position.cursor = cursor
        position.tokens += int(measured.num_tokens)
        failed = self._count_non_finite(measured, log)
        self.progress.step(self.meter.brief(position, measured))
        logged = position.step == 1 or position.step % self.recipe.train.log_every == 0
        if logged or failed or position.step == self.total_steps:
            log.write(self.meter.record(position, measured))
        if failed:
            raise RunError(failed)

    def _count_non_finite(self, measured: StepMetrics, log: MetricsLog) -> str:
        """Counts a skipped step; returns why the run must end, or an empty string."""
        position = self.position
        if measured.applied:
            position.non_finite_in_a_row = 0
            return ""
        position.skipped_steps += 1
        position.non_finite_in_a_row += 1
        culprit = first_non_finite(self.state, measured)
        log.write({"event": "skipped", "step": position.step, "first_non_finite": culprit})
        self.progress.note(f"step {position.step}: skipped, {culprit} is not finite")
        if position.non_finite_in_a_row < NON_FINITE_LIMIT:
            return ""
        steps = checkpoint.steps(self.checkpoints)
        kept = (
            f"last checkpoint {self.checkpoints}/step-{steps[0]}" if steps else "no checkpoint yet"
        )
        return (
            f"step {position.step}: {NON_FINITE_LIMIT} non-finite steps in a row, "
            f"first non-finite: {culprit}; {kept}"
        )

    def _between_steps(self, log: MetricsLog) -> None:
        train, step = self.recipe.train, self.position.step
        last = step == self.total_steps
        if last or (train.eval_every > 0 and step % train.eval_every == 0):
            self.progress.phase("evaluating on held-out text")
            params = self.ranks.gather(self.state.params)
            result = processes.from_first("evaluating", lambda: self.held_out.evaluate(params))
            log.write({"event": "eval", "step": step, **result})
            bits = result["held_out_bits_per_byte"]
            self.progress.note(f"step {step}: {bits:.3f} bits/byte on held-out text")
            self.meter.raise_peak(processes.from_first("measuring the peak", measure.peak_tflops))
        if last or (train.checkpoint_every > 0 and step % train.checkpoint_every == 0):
            self._save(log)

    def _save(self, log: MetricsLog) -> None:
        if self.saved_step == self.position.step:
            return
        self.progress.phase("writing a checkpoint")
        state = self.ranks.gather(self.state)
        processes.from_first("writing a checkpoint", lambda: self._write(log, state))
        self.saved_step = self.position.step

    def _write(self, log: MetricsLog, state: TrainState) -> None:
        log.sync()
        scalars = self.position.scalars(self.recipe)
        trees = {"params": state.params, "optimizer": state.opt_state}
        keep = self.recipe.train.keep_checkpoints
        try:
            checkpoint.save(self.checkpoints, self.position.step, trees, scalars, keep)
        except checkpoint.CheckpointError as error:
            raise RunError(f"step {self.position.step}: {error}") from error

    def _interrupt(self, log: MetricsLog) -> None:
        self._save(log)
        raise Interrupted(
            f"interrupted after step {self.position.step}; go on with "
            f"`anabranch train --resume --out {self.out_dir} --steps {self.total_steps}`"
        )

    def _finish(self, log: MetricsLog) -> dict[str, Any]:
        params = self.ranks.gather(self.state.params)
        return processes.from_first("writing a sample", lambda: self._summarise(log, params))

    def _summarise(self, log: MetricsLog, params: Any) -> dict[str, Any]:
        self._sample(log, params)
        records = metrics.read(self.out_dir)
        last = next((r for r in reversed(records) if "event" not in r), {})
        held_out = next((r for r in reversed(records) if r.get("event") == "eval"), {})
        position = self.position
        summary = {
            "event": "finished",
            "step": position.step,
            "tokens": position.tokens,
            "seconds": self.meter.elapsed(),
            "skipped_steps": position.skipped_steps,
            "dropped_tokens": sum(r.get("dropped_tokens", 0) for r in records),
            "loss": last.get("loss"),
            "bits_per_byte": last.get("bits_per_byte"),
            "held_out_loss": held_out.get("held_out_loss"),
            "held_out_bits_per_byte": held_out.get("held_out_bits_per_byte"),
            "baselines": self.baselines,
            "tokens_per_second": last.get("tokens_per_second"),
            "mfu": last.get("mfu"),
        }
        log.write(summary)
        return summary

    def _sample(self, log: MetricsLog, params: Any) -> None:
        self.progress.phase("writing a sample of text")
        window = self.recipe.train.sequence_length
        generator = Generator(params, self.recipe.model, self.store.tokenizer, max(window, 2))
        step = self.position.step
        for seed, prompt in enumerate(SAMPLE_PROMPTS):
            text = generator.text(prompt, SAMPLE_TOKENS, seed=seed)
            log.write({"event": "sample", "step": step, "prompt": prompt, "text": text})

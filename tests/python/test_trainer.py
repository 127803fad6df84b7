# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
import math
import os
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import training
from anabranch import models
from anabranch.errors import RunError, UsageError
from anabranch.recipes import TrainConfig
from anabranch.train import (
    checkpoint,
    meter,
    metrics,
    optimizer,
    run_folder,
    schedule,
    step,
    trainer,
)
from anabranch.train.corpus import open_corpus
from anabranch.train.evaluation import HeldOut
from anabranch.train.generation import Generator
from anabranch.train.prefetch import Prefetcher
from training import assert_equal_trees, records, tensors, tiny

text = training.text

# Settings that take a step in parts.
PARTS = ["train.microbatches=2", "model.remat=full"]

# A position that no batch has; the poisoned loss below is NaN for a batch that starts with it.
POISON = 1_000


@pytest.fixture(autouse=True)
def short_samples(monkeypatch):
    monkeypatch.setattr(trainer, "SAMPLE_TOKENS", 3)


@pytest.fixture
def poison(monkeypatch):
    """poison(steps): the loss of these steps (from 1) becomes NaN."""

    def poisoned(steps):
        real_loss, real_next = models.loss, trainer.data.BatchReader.next

        def loss(params, batch, config, **options):
            value, aux = real_loss(params, batch, config, **options)
            bad = batch["positions"][0, 0] == POISON
            return value * jnp.where(bad, jnp.nan, 1.0), aux

        def following(reader):
            batch = real_next(reader)
            if reader.cursor["sequence"] // reader.batch_size in steps:
                batch["positions"][0, 0] = POISON
            return batch

        monkeypatch.setattr(step.models, "loss", loss)
        monkeypatch.setattr(trainer.data.BatchReader, "next", following)

    return poisoned


def batch_of(recipe, seed=0, ignored=0.3):
    """Random tokens; the share of ignored labels differs from sequence to sequence."""
    train = recipe.train
    rng = np.random.default_rng(seed)
    shape = (train.batch_size, train.sequence_length)
    tokens = rng.integers(0, 256, shape).astype(np.int32)
    labels = rng.integers(0, 256, shape).astype(np.int32)
    labels[rng.random(shape) < ignored * np.arange(1, shape[0] + 1)[:, None] / shape[0] * 2] = -1
    ones = np.ones(shape, np.int32)
    positions = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    return {"tokens": tokens, "labels": labels, "segment_ids": ones, "positions": positions}


def state_of(recipe):
    return jax.jit(lambda key: step.init_state(key, recipe))(jax.random.key(0))


# --- schedules and optimizer -----------------------------------------------------------------------


def test_cosine_warms_up_peaks_and_ends_at_its_minimum():
    rate = schedule.learning_rate(
        TrainConfig(steps=100, warmup_steps=10, learning_rate=1.0, min_learning_rate_ratio=0.1)
    )
    values = np.array([rate(i) for i in range(140)])
    np.testing.assert_allclose(values[:10], np.arange(1, 11) / 10, rtol=1e-6)
    middle = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 45 / 90))
    np.testing.assert_allclose(values[55], middle, rtol=1e-6)
    np.testing.assert_allclose(values[100:], 0.1, rtol=1e-6)
    assert (np.diff(values[10:100]) < 0).all()


def test_wsd_is_flat_and_then_falls():
    rate = schedule.learning_rate(
        TrainConfig(
            steps=100,
            warmup_steps=10,
            learning_rate=1.0,
            min_learning_rate_ratio=0.0,
            schedule="wsd",
            decay_fraction=0.2,
        )  # fmt: skip
    )
    values = np.array([rate(i) for i in range(110)])
    np.testing.assert_allclose(values[10:81], 1.0, rtol=1e-6)
    np.testing.assert_allclose(values[90], 0.5, rtol=1e-6)
    np.testing.assert_allclose(values[100:], 0.0, atol=1e-7)


def test_schedule_without_warm_up_or_shorter_than_it():
    flat = schedule.learning_rate(TrainConfig(steps=10, warmup_steps=0, learning_rate=1.0))
    assert float(flat(0)) == 1.0
    short = schedule.learning_rate(TrainConfig(steps=5, warmup_steps=50, learning_rate=1.0))
    np.testing.assert_allclose([float(short(i)) for i in range(5)], np.arange(1, 6) / 5, rtol=1e-6)


def test_weight_decay_spares_norms_and_biases(text):
    recipe = tiny(text, "train.weight_decay=0.5", "train.learning_rate=0.1", "train.warmup_steps=0")
    params = jax.tree.map(jnp.ones_like, state_of(recipe).params)
    transform = optimizer.adamw(recipe.train)
    zeros = jax.tree.map(jnp.zeros_like, params)
    updates, state = jax.jit(transform.update)(zeros, jax.jit(transform.init)(params), params)
    for path, update in jax.tree_util.tree_flatten_with_path(updates)[0]:
        name = checkpoint.leaf_name(path)
        spared = "norm" in name or "bias" in name
        np.testing.assert_allclose(update, 0.0 if spared else -0.05, rtol=1e-6, err_msg=name)
    assert all(m.dtype == jnp.float32 for m in jax.tree.leaves((state[0].mu, state[0].nu)))
    assert int(optimizer.applied_steps(state)) == 1


def test_clip_factor_limits_the_global_norm():
    np.testing.assert_allclose(optimizer.clip_factor(jnp.float32(5.0), 1.0), 0.2, rtol=1e-6)
    assert float(optimizer.clip_factor(jnp.float32(5.0), 10.0)) == 1.0
    assert float(optimizer.clip_factor(jnp.float32(0.0), 10.0)) == 1.0
    assert float(optimizer.clip_factor(jnp.float32(5.0), 0.0)) == 1.0


# --- one step ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_parts(text):
    """The same step in f32 with the batch whole, in 4 parts, and in 4 parts with recomputation."""
    results = []
    for count, remat in ((1, "none"), (4, "none"), (4, "full")):
        settings = (f"train.microbatches={count}", f"model.remat={remat}", "model.dtype=float32")
        recipe = tiny(text, *settings)
        old = state_of(recipe)
        results.append(jax.jit(step.make_train_step(recipe))(old, batch_of(recipe)))
    return recipe, old, results


def test_microbatches_weigh_every_label_the_same(in_parts):
    recipe, old, ((_, whole), *others) = in_parts
    batch = batch_of(recipe)
    for _, parts in others:
        # Sums of the same f32 terms in another order: a few roundings of the largest value.
        np.testing.assert_allclose(parts.objective, whole.objective, rtol=1e-6)
        np.testing.assert_allclose(parts.cross_entropy, whole.cross_entropy, rtol=1e-6)
        np.testing.assert_allclose(parts.grad_norm, whole.grad_norm, rtol=1e-5)
        np.testing.assert_allclose(parts.grad_squares, whole.grad_squares, rtol=1e-4, atol=1e-12)
        assert int(parts.num_labels) == int(whole.num_labels) == (batch["labels"] >= 0).sum()
    # A mean of the parts' means would differ visibly: the parts hold different numbers of labels.
    loss = jax.jit(lambda params, part: models.loss(params, part, recipe.model)[0])
    means = [loss(old.params, {k: v[i : i + 1] for k, v in batch.items()}) for i in range(4)]
    assert abs(float(np.mean(means)) - float(whole.objective)) > 1e-4


def test_b5_counts_and_bias_move_once_per_step(in_parts):
    recipe, _, results = in_parts
    tokens = recipe.train.batch_size * recipe.train.sequence_length
    sizes = np.asarray(results[0][1].group_sizes)
    mean = tokens * recipe.model.topk / recipe.model.num_experts
    moved = np.float32(recipe.model.expert_bias_rate) * np.sign(mean - sizes[0])
    for new, measured in results:
        assert int(measured.num_tokens) == tokens
        assert int(measured.group_sizes.sum()) == tokens * recipe.model.topk
        np.testing.assert_array_equal(measured.group_sizes, sizes)
        bias = new.params["layers"][1]["moe"]["expert_bias"]
        np.testing.assert_array_equal(bias, moved.astype(np.float32))


@pytest.mark.parametrize("settings", [[], PARTS])
def test_d8_a_batch_with_nothing_to_learn(text, settings):
    recipe = tiny(text, *settings)
    batch = batch_of(recipe)
    batch["labels"] = np.full_like(batch["labels"], -1)
    _, measured = jax.jit(step.make_train_step(recipe))(state_of(recipe), batch)
    assert float(measured.cross_entropy) == float(measured.objective) == 0.0
    assert (np.asarray(measured.grad_squares) == 0).all()
    assert bool(measured.applied) and int(measured.num_labels) == 0


def test_padding_is_not_counted(text):
    recipe = tiny(text)
    batch = batch_of(recipe)
    batch["segment_ids"] = np.ones_like(batch["tokens"])
    batch["segment_ids"][1:, 5:] = 0
    _, measured = jax.jit(step.make_train_step(recipe))(state_of(recipe), batch)
    tokens = int((batch["segment_ids"] > 0).sum())
    assert int(measured.num_tokens) == tokens
    assert int(measured.group_sizes.sum()) == tokens * recipe.model.topk


def test_d10_non_finite_step_leaves_the_state_bit_for_bit(text, poison):
    poison(set())
    recipe = tiny(text)
    take = jax.jit(step.make_train_step(recipe))
    batch = batch_of(recipe)
    state, measured = take(state_of(recipe), batch)  # moments are no longer zero
    assert bool(measured.applied)
    bad = {**batch, "positions": batch["positions"].copy()}
    bad["positions"][0, 0] = POISON
    after, measured = take(state, bad)
    assert not bool(measured.applied)
    assert step.first_non_finite(state, measured) == "loss"
    assert_equal_trees(after, state)


def test_d10_non_finite_gradient_is_named(text):
    recipe = tiny(text)
    state = state_of(recipe)
    squares = np.ones(len(jax.tree.leaves(state.params)), np.float32)
    names = [
        checkpoint.leaf_name(path)
        for path, _ in jax.tree_util.tree_flatten_with_path(state.params)[0]
    ]
    squares[5] = np.inf
    _, measured = jax.jit(step.make_train_step(recipe))(state, batch_of(recipe))
    measured = measured._replace(grad_squares=squares)
    assert step.first_non_finite(state, measured) == f"gradient of {names[5]}"


# --- whole runs --------------------------------------------------------------------------------------

STEP_KEYS = {
    "step", "tokens", "loss", "bits_per_byte", "grad_norm", "learning_rate", "step_seconds",
    "tokens_per_second", "model_tflops", "mfu", "peak_tflops", "rss_gib", "dropped_tokens",
    "max_violation", "dead_experts", "skipped_steps", "expert_load", "time_split",
}  # fmt: skip


def test_run_leaves_a_complete_folder(text, tmp_path):
    affinity = os.sched_getaffinity(0)
    recipe = tiny(text, "train.eval_every=3", "train.tensorboard=true")
    summary = trainer.run(recipe, tmp_path)
    assert os.sched_getaffinity(0) == affinity  # E6
    assert json.loads((tmp_path / "config.json").read_text())["train"]["steps"] == 8
    assert run_folder.read_recipe(tmp_path) == recipe
    steps = records(tmp_path)
    assert [record["step"] for record in steps] == list(range(1, 9))
    for record in steps:
        assert record.keys() >= STEP_KEYS
        assert record["tokens"] == record["step"] * 4 * 32 and record["dropped_tokens"] == 0
        assert len(record["max_violation"]) == len(record["dead_experts"]) == 1
        assert sum(record["expert_load"][0]) == 4 * 32 * 2
        share = record["model_tflops"] / record["peak_tflops"]
        assert record["mfu"] == pytest.approx(share) and 0 < share
        nats = record["bits_per_byte"] * math.log(2) * open_corpus(recipe).train.bytes_per_token
        assert nats == pytest.approx(record["loss"])
    assert [record["step"] for record in records(tmp_path, "eval")] == [3, 6, 8]
    assert len(records(tmp_path, "started")) == 1 and len(records(tmp_path, "sample")) == 2
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["event"] == "finished" and last["step"] == 8 and last["tokens"] == 8 * 4 * 32
    assert checkpoint.steps(tmp_path / "checkpoints") == [8, 6]
    assert "<html" in (tmp_path / "report.html").read_text()
    assert list((tmp_path / "tensorboard").iterdir())
    assert summary["held_out_loss"] == records(tmp_path, "eval")[-1]["held_out_loss"]


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """A run of 8 steps without a stop, for the runs that had one."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    trainer.run(tiny(text), folder)
    return folder


def assert_same_run(run, whole):
    assert tensors(run, 8) == tensors(whole, 8)
    for a, b in zip(records(run), records(whole), strict=True):
        for key in ("step", "tokens", "loss", "grad_norm", "learning_rate", "expert_load"):
            assert a[key] == b[key], key


def test_resume_is_bitwise(text, tmp_path, whole):
    recipe = tiny(text)
    trainer.run(recipe, tmp_path, steps=3)
    trainer.run(recipe, tmp_path, resume=True)
    assert_same_run(tmp_path, whole)
    assert records(tmp_path, "started")[-1]["resumed_from"] == 3


def test_resume_is_bitwise_in_parts(text, tmp_path):
    recipe = tiny(text, *PARTS)
    trainer.run(recipe, tmp_path / "whole")
    trainer.run(recipe, tmp_path / "parts", steps=4)
    trainer.run(recipe, tmp_path / "parts", resume=True)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_d4_loss_of_the_saved_run_is_that_of_the_live_one(text, tmp_path):
    recipe = tiny(text)
    live = trainer.run(recipe, tmp_path, steps=3)["held_out_loss"]
    params, at = run_folder.load_params(tmp_path, recipe, pytest.fail)
    loaded = HeldOut(recipe, open_corpus(recipe), recipe.train.eval_batches).evaluate(params)
    assert at == 3 and loaded["held_out_loss"] == live


def test_d10_run_skips_a_non_finite_step_whole_and_counts_it(text, tmp_path, poison):
    poison({3})
    recipe = tiny(text, "train.checkpoint_every=1", "train.keep_checkpoints=9")
    summary = trainer.run(recipe, tmp_path, steps=6)
    steps = records(tmp_path)
    assert [record["skipped_steps"] for record in steps] == [0, 0, 1, 1, 1, 1]
    assert steps[2]["loss"] is not None and steps[2]["grad_norm"] is None
    assert steps[3]["learning_rate"] == steps[2]["learning_rate"]  # the schedule waited
    assert summary["skipped_steps"] == 1
    assert records(tmp_path, "skipped")[0]["first_non_finite"] == "loss"
    before, after = tensors(tmp_path, 2), tensors(tmp_path, 3)
    for name in ("params.safetensors", "optimizer.safetensors"):
        assert before[name] == after[name]
        assert before[name] != tensors(tmp_path, 4)[name]
    for number in range(1, 7):
        found = checkpoint.verify(tmp_path / "checkpoints" / f"step-{number}")
        for tree in ("params", "optimizer"):
            assert all(np.isfinite(t).all() for t in found.tensors(tree).values())


def test_d10_five_non_finite_steps_in_a_row_end_the_run(text, tmp_path, poison):
    poison({2, 4, 5, 6, 7, 8, 9})
    recipe = tiny(text, "train.checkpoint_every=3")
    with pytest.raises(RunError, match=r"step 8: 5 non-finite steps .*: loss; last .*step-6"):
        trainer.run(recipe, tmp_path, steps=20)
    steps = records(tmp_path)
    assert steps[-1]["step"] == 8 and steps[-1]["skipped_steps"] == 6
    found = checkpoint.newest_good(tmp_path / "checkpoints", pytest.fail)
    assert found.step == 6
    assert all(np.isfinite(tensor).all() for tensor in found.tensors("params").values())
    assert (tmp_path / "report.html").exists()


def test_d10_a_huge_learning_rate_never_reaches_a_checkpoint(text, tmp_path):
    recipe = tiny(text, "train.learning_rate=1e38", "train.checkpoint_every=1")
    with pytest.raises(RunError, match="step "):
        trainer.run(recipe, tmp_path, steps=12)
    for number in checkpoint.steps(tmp_path / "checkpoints"):
        found = checkpoint.verify(tmp_path / "checkpoints" / f"step-{number}")
        assert all(np.isfinite(tensor).all() for tensor in found.tensors("params").values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_ends_the_run_with_a_checkpoint(text, tmp_path, whole, monkeypatch, number):
    recipe = tiny(text, "train.checkpoint_every=0")
    real = meter.Meter.add

    def add(self, *measured):
        real(self, *measured)
        self.added = getattr(self, "added", 0) + 1
        if self.added == 3:
            os.kill(os.getpid(), number)

    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(meter.Meter, "add", add)
        with pytest.raises(trainer.Interrupted, match="after step 3; go on with"):
            trainer.run(recipe, tmp_path)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    assert checkpoint.steps(tmp_path / "checkpoints") == [3]
    trainer.run(recipe, tmp_path, resume=True)
    assert_same_run(tmp_path, whole)


def test_resuming_a_finished_run_changes_nothing(text, tmp_path, whole):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    again = trainer.run(tiny(text), tmp_path, resume=True)
    assert again["held_out_loss"] == records(whole, "eval")[-1]["held_out_loss"]
    assert (tmp_path / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_resume_before_the_first_checkpoint_starts_again(text, tmp_path, whole, capsys):
    recipe = tiny(text)
    run_folder.write_recipe(tmp_path, recipe)
    (tmp_path / metrics.FILE).write_text('{"event": "started"}\n{"step": 1, "loss": 9.0}\n{"st')
    trainer.run(recipe, tmp_path, resume=True)
    assert "no checkpoint yet" in capsys.readouterr().out
    assert_same_run(tmp_path, whole)


def test_resume_with_another_model_is_a_usage_error(text, tmp_path, whole):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    with pytest.raises(UsageError, match="does not fit the recipe"):
        trainer.run(tiny(text, "model.expert_width=8"), tmp_path, resume=True)
    with pytest.raises(UsageError, match="seed"):
        trainer.run(tiny(text, "train.seed=5"), tmp_path, resume=True)


def test_vocabulary_must_fit_the_model(text):
    with pytest.raises(UsageError, match="model.vocab_size=64"):
        open_corpus(tiny(text, "model.vocab_size=64"))


# --- parts -------------------------------------------------------------------------------------------


def test_truncated_log_keeps_what_the_checkpoint_knows(tmp_path):
    path = tmp_path / metrics.FILE
    lines = [
        {"event": "started"}, {"step": 1}, {"step": 2}, {"event": "eval", "step": 2}, {"step": 3},
        {"event": "eval", "step": 4}, {"event": "finished", "step": 2},
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 4, "lo')
    metrics.truncate(path, 2)
    assert metrics.read(tmp_path) == lines[:4]


def test_log_writes_null_for_what_json_cannot_hold(tmp_path):
    with metrics.MetricsLog(tmp_path, resume_step=None, tensorboard=False) as log:
        log.write({"step": 1, "loss": math.nan, "max_violation": [math.inf, 1.0]})
    assert records(tmp_path) == [{"step": 1, "loss": None, "max_violation": [None, 1.0]}]


def test_balance_figures():
    figures = meter.balance(np.array([[4, 0, 2, 2], [2, 2, 2, 2]], np.int32))
    assert figures["max_violation"] == [1.0, 0.0]
    assert figures["dead_experts"] == [1, 0]
    assert meter.balance(np.zeros((0, 8), np.int32))["max_violation"] == []
    assert meter.balance(np.zeros((1, 2), np.int32))["max_violation"] == [0.0]


def test_prefetcher_hands_out_the_cursor_of_the_batch():
    class Reader:
        cursor = 0

        def next(self):
            if self.cursor == 5:
                raise RunError("the disk is gone")
            self.cursor += 1
            return {"tokens": np.full((1, 1), self.cursor)}

    batches = Prefetcher(Reader(), depth=3)
    for expected in range(1, 6):
        batch, cursor = batches.next()
        assert cursor == expected and batch["tokens"][0, 0] == expected
    with pytest.raises(RunError, match="disk is gone"):
        batches.next()
    batches.close()


def test_prefetcher_closes_while_it_waits():
    class Reader:
        cursor = 0

        def next(self):
            return {}

    batches = Prefetcher(Reader(), depth=1)
    batches.next()
    batches.close()


def test_generation_repeats_and_stays_in_the_vocabulary(text):
    recipe = tiny(text)
    params, tokenizer = state_of(recipe).params, open_corpus(recipe).tokenizer
    generator = Generator(params, recipe.model, tokenizer, window=8)
    drawn = list(generator.stream("abc", 30, temperature=5.0, top_k=0, seed=1))
    assert drawn == list(generator.stream("abc", 30, temperature=5.0, top_k=0, seed=1))
    assert drawn != list(generator.stream("abc", 30, temperature=5.0, top_k=0, seed=2))
    forbidden = {tokenizer.bos_id, tokenizer.pad_id, tokenizer.eos_id}
    assert all(0 <= token < tokenizer.vocab_size and token not in forbidden for token in drawn)
    greedy = list(generator.stream("abc", 4, temperature=0.0))
    assert greedy == list(generator.stream("abc", 4, temperature=1.0, top_k=1, seed=9))
    context = [tokenizer.bos_id, *tokenizer.encode("abc").tolist()]
    forward = jax.jit(lambda params, tokens: models.logits(params, tokens, recipe.model))
    logits = forward(params, jnp.array([context], jnp.int32))[0, -1]
    allowed = [i for i in range(tokenizer.vocab_size) if i not in forbidden - {tokenizer.eos_id}]
    best = allowed[int(jnp.argmax(logits[jnp.array(allowed)]))]
    assert best in (tokenizer.eos_id, greedy[0] if greedy else None)
    with pytest.raises(ValueError, match="temperature=-1"):
        next(generator.stream("", 1, temperature=-1))


def test_position_survives_json():
    position = meter.Position(step=3, tokens=7, skipped_steps=1, cursor={"sequence": 9})
    recipe = dataclasses.replace(training.recipes.get("smoke"))
    scalars = json.loads(json.dumps(position.scalars(recipe)))
    assert meter.Position.from_scalars(scalars) == position

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""A tiny recipe, its text, and readers of what a run left, for the tests of the trainer and of the command line."""

import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from anabranch import recipes

# Overrides that make `smoke` small enough to compile and run in a second or two.
TINY = [
    "model.hidden_size=32", "model.dense_width=32", "model.expert_width=16", "train.batch_size=4",
    "train.sequence_length=32", "train.eval_batches=1", "train.checkpoint_every=2", "train.eval_every=0",
    "train.steps=8", "train.warmup_steps=2",
]  # fmt: skip


def write_text(folder: pathlib.Path) -> pathlib.Path:
    """Two hundred files of words, enough for one or two on the held-out side."""
    words = random.Random(1)
    folder.mkdir(parents=True)
    for index in range(200):
        line = " ".join("".join(words.choices("abcdefgh ", k=5)) for _ in range(400))
        (folder / f"{index}.txt").write_text(line)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Folder of training text; stores built from it, and compiled code, are kept for a module."""
    root = tmp_path_factory.mktemp("training")
    with pytest.MonkeyPatch.context() as patch, compiled_once(root / "xla"):
        patch.setenv("ANABRANCH_CACHE", str(root / "cache"))
        yield write_text(root / "text")


def cache_settings(folder: pathlib.Path) -> dict[str, object]:
    """JAX's settings for keeping all compiled code in `folder`."""
    return {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }


@contextlib.contextmanager
def compiled_once(folder: pathlib.Path):
    """Keeps compiled code in `folder`: many tests compile the same step."""
    settings = cache_settings(folder)
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def tiny(text: pathlib.Path, *settings: str) -> recipes.Recipe:
    return recipes.override(recipes.get("smoke"), [*TINY, f"data.path={text}", *settings])


def tiny_arguments(text: pathlib.Path, *settings: str) -> list[str]:
    """The same as arguments of `anabranch train`."""
    return ["smoke", *(f"--set={each}" for each in [*TINY, f"data.path={text}", *settings])]


def command(*arguments: object, **environment: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "anabranch", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def compiled_before(text: pathlib.Path) -> dict[str, str]:
    """Environment of a command that may use what this process compiled."""
    settings = (
        f"{name.upper()}={value}" for name, value in cache_settings(text.parent / "xla").items()
    )
    return dict(setting.split("=", 1) for setting in settings)


def cli(*arguments: object, **environment: str) -> tuple[int, str, str]:
    """Runs `anabranch` to its end: exit code, stdout, stderr."""
    process = command(*arguments, **environment)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def records(run: pathlib.Path, event: str | None = None) -> list[dict]:
    """Lines of metrics.jsonl: the logged steps, or one kind of event; NaN and Infinity are no JSON."""

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} in metrics.jsonl")

    lines = (run / "metrics.jsonl").read_text().splitlines()
    parsed = [json.loads(line, parse_constant=refuse) for line in lines]
    return [record for record in parsed if record.get("event") == event]


def tensors(run: pathlib.Path, step: int) -> dict[str, bytes]:
    """The bytes of every file of a checkpoint, the manifest too."""
    folder = run / "checkpoints" / f"step-{step}"
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def assert_equal_trees(left, right) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))

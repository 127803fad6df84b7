# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""bench/convergence: the verdict follows from the losses, and a stopped experiment goes on where it was."""

import json
import pathlib
import sys

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "bench" / "convergence"
sys.path.insert(0, str(FOLDER))

import arms  # noqa: E402
import convergence  # noqa: E402
import verdict  # noqa: E402

from training import TINY, text  # noqa: E402, F401


def synthetic(excess, sigma=0.001, steps=100):
    """Losses by arm and seed; the last tenth of each is 2 * (1 + its excess), moved by the seed."""
    return {
        arm: {
            seed: np.concatenate([np.full(steps - 10, 9.0), np.full(10, 2 * (1 + x))])
            + sigma * seed
            for seed in range(3)
        }
        for arm, x in {"bf16": 0.0, **excess}.items()
    }


def holds(excess, **options):
    return dict(verdict.checks(verdict.rows(synthetic(excess, **options))))


def test_the_last_tenth_counts():
    assert verdict.final_loss(np.arange(100.0)) == np.mean(np.arange(90, 100))
    assert verdict.final_loss(np.array([3.0])) == 3.0
    assert np.isnan(verdict.final_loss(np.array([1.0] * 19 + [np.nan])))


def test_differences_are_to_the_same_seed():
    by_arm = {row.arm: row for row in verdict.rows(synthetic({"mxfp8": 0.01}, sigma=0.1))}
    row = by_arm["mxfp8"]
    np.testing.assert_allclose(row.differences, [0.02 / 2, 0.02 / 2.1, 0.02 / 2.2], rtol=1e-9)
    assert by_arm["bf16"].differences == (0.0, 0.0, 0.0)
    np.testing.assert_allclose(row.error, np.std(row.differences, ddof=1) / 3**0.5)
    np.testing.assert_allclose(by_arm["bf16"].sigma, 0.1)


@pytest.mark.parametrize(
    ("arm", "excess", "sigma", "expected"),
    [
        ("mxfp8", 0.0024, 0.0, True),
        ("mxfp8", 0.0026, 0.0, False),
        ("mxfp8", -0.0026, 0.0, False),  # better by more than noise is suspect, too
        ("mxfp8", 0.0026, 0.003, True),  # within two sigma of the seeds
        ("fp8_block", 0.0026, 0.0, False),
        ("nvfp4", 0.024, 0.0, True),
        ("nvfp4", 0.028, 0.1, False),  # no allowance for seeds here; 2.67 % on average
        ("nvfp4", np.nan, 0.0, False),
    ],
)
def test_bars(arm, excess, sigma, expected):
    ((rule, passed),) = holds({arm: excess}, sigma=sigma).items()
    assert rule.startswith(f"{arm} within")
    assert passed == expected


def test_nvfp4_is_held_against_its_ablations():
    found = holds({"nvfp4": 0.01, "nvfp4-sr": 0.02, "nvfp4-rht": 0.01, "nvfp4-2d": 0.005})
    assert list(found.values()) == [True, True, True, False]


def test_a_stopped_experiment_goes_on(text, tmp_path, monkeypatch, capsys):  # noqa: F811
    small = ["train.steps=3", "model.num_layers=1", "model.num_dense_layers=0"]
    settings = [*TINY, f"data.path={text}", *small]
    given = [f"--set={each}" for each in settings]
    given += [f"--out={tmp_path / 'runs'}", f"--results={tmp_path}"]
    monkeypatch.setattr(convergence, "_COMPILED", {})
    assert convergence.main([*given, "--seeds=1", "--arms=bf16", "--table"]) == 1
    assert convergence.main([*given, "--seeds=1", "--arms=bf16,mxfp8"]) == 0
    first = (tmp_path / "convergence.md").read_text()
    assert "| `mxfp8` |" in first
    runs = json.loads((tmp_path / "convergence.json").read_text())["runs"]
    assert [len(run["losses"]) for run in runs] == [3, 3]
    assert runs[0]["losses"][0] == runs[1]["losses"][0] or runs[1]["flushed_share"] > 0
    monkeypatch.setattr(convergence, "train", lambda *_: pytest.fail("ran a second time"))
    assert convergence.main([*given, "--seeds=1", "--arms=bf16,mxfp8"]) == 0
    assert (tmp_path / "convergence.md").read_text() == first
    # Other settings are another experiment.
    assert convergence.main([*given, "--set=train.steps=4", "--seeds=1", "--table"]) == 1
    capsys.readouterr()


def test_every_arm_is_a_recipe():
    for arm in arms.ARMS:
        recipe = arms.recipe(arm, 1)
        assert recipe.precision.recipe == arm and recipe.train.seed == 1
        assert recipe.model.hidden_size % 128 == 0 and recipe.model.expert_width % 128 == 0

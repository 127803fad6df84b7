# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""bench/peers: the catalogue is consistent, samples are judged and joined as the tables say."""

import argparse
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "bench" / "peers"
sys.path.insert(0, str(FOLDER))

import catalogue  # noqa: E402
import environments  # noqa: E402
import ffn_inputs  # noqa: E402
import probe  # noqa: E402
import run  # noqa: E402
import table  # noqa: E402


def sample(peer, seconds, pair="p", busy=0.0, gigabytes=4.0):
    tokens = 512 * catalogue.PEERS[peer].sequences
    return {
        "peer": peer,
        "pair": pair,
        "step_seconds": seconds,
        "losses": [8.0, 7.0],
        "peak_rss_bytes": gigabytes * 1e9,
        "busy_neighbour_cores": busy,
        "tokens_per_step": tokens,
        "parameters": 10,
        "versions": {"python": "3"},
    }


def row_of(rows, name):
    return next(row for row in rows if row["name"] == name)


OURS, DENSE, DROPS = "ours-bf16-2048", "maxtext-dense-bf16-2048", "maxtext-capacity1.0-bf16-2048"


def test_every_peer_is_compared_with_ours_on_the_same_tokens():
    for name in catalogue.ALL:
        peer = catalogue.PEERS[name]
        for other in (peer.ours, peer.like):
            ours = catalogue.PEERS[other]
            assert ours.environment == "ours"
            assert (ours.sequences, ours.kind) == (peer.sequences, peer.kind)
            assert peer.kind == "step" or ours.options == peer.options
        assert catalogue.PEERS[peer.like].dtype == peer.dtype
    assert set(catalogue.QUICK) <= set(catalogue.ALL)
    families = {peer.family for peer in catalogue.PEERS.values()}
    assert all(set(bar.families) <= families for bar in catalogue.BARS)


def test_ratios_are_taken_within_pairs():
    samples = [
        sample(OURS, [1.0, 1.0], "early"),
        sample(DENSE, [10.0, 10.0], "early"),
        sample(OURS, [2.0, 2.0], "late"),  # a slow hour of the machine
        sample(DENSE, [22.0, 22.0], "late"),
        sample(OURS, [50.0], "other"),
    ]
    ratio = row_of(table.rows(samples), DENSE)["times_ours"]
    assert ratio == {"median": 10.5, "least": 10.0, "most": 11.0, "pairs": 2}


def test_busy_samples_are_left_out_where_idle_ones_exist():
    samples = [sample(OURS, [1.0] * 4), sample(OURS, [9.0] * 4, busy=0.5)]
    row = row_of(table.rows(samples), OURS)
    assert row["seconds"] == 1.0 and row["idle"]
    row = row_of(table.rows(samples[1:]), OURS)
    assert row["seconds"] == 9.0 and not row["idle"]


def test_the_fastest_of_the_others_decides_a_bar():
    samples = [
        sample(OURS, [1.0], gigabytes=3.0),
        sample(DENSE, [30.0]),
        sample(DROPS, [4.0]),
        sample("maxtext-capacity1.25-bf16-2048", [9.0]),
    ]
    bars = {bar["what"]: bar for bar in table.bars(table.rows(samples))}
    dropless = bars["MaxText's best dropless path"]
    assert (dropless["measured"], dropless["row"], dropless["reached"]) == (30.0, DENSE, True)
    dropping = bars["MaxText's best path that drops tokens"]
    assert (dropping["measured"], dropping["row"], dropping["reached"]) == (4.0, DROPS, False)
    memory = next(bar for what, bar in bars.items() if what.startswith("Resident"))
    assert memory["measured"] == pytest.approx(0.75) and not memory["reached"]
    assert "Transformers with `grouped_mm`" not in bars  # not measured, so not judged


def test_the_table_gives_rate_ratio_and_missed_aims():
    samples = [sample(OURS, [2.0] * 4), sample(DROPS, [8.0] * 4)]
    text = table.markdown(table.rows(samples), 1e8, 400.0)
    line = next(line for line in text.splitlines() if "capacity 1.0" in line)
    assert "| 256 |" in line and line.endswith("| 4.0x |") and "| yes |" in line
    assert "| 0.256 |" in text  # 1,024 tokens/s of 1e8 FLOPs each by 400 GFLOP/s
    assert "| no |" in text.splitlines()[-2]


def test_spread_is_that_of_quartiles_or_of_everything_when_there_are_few():
    assert table.spread([1.0, 1.0, 1.0, 9.0, 1.0, 1.0, 1.0]) == 0.0
    assert table.spread([1.0, 2.0, 3.0]) == 1.0


def test_tokens_are_the_same_on_every_call_and_skewed_as_text_is():
    tokens = np.array(run.tokens_of(4, 512, 2048))
    assert tokens.shape == (4, 513) and tokens.min() >= 0 and tokens.max() < 2048
    np.testing.assert_array_equal(tokens, run.tokens_of(4, 512, 2048))
    # A batch of one sequence is the first of a batch of four.
    np.testing.assert_array_equal(tokens[:1], run.tokens_of(1, 512, 2048))
    assert 0.08 < np.mean(tokens == 0) < 0.17  # 1 / H(2048) = 0.122


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": 11}, "parameters"),
        ({"losses": [7.0, 7.5]}, "lower its loss"),
        ({"updated": False}, "lower its loss"),
    ],
)
def test_samples_of_another_model_or_without_learning_are_refused(change, message):
    good = sample(OURS, [1.0]) | {"updated": True}
    run.verify(OURS, good, {"parameters": 10})
    with pytest.raises(run.Failure, match=message):
        run.verify(OURS, good | change, {"parameters": 10})


def test_the_layer_check_refuses_a_wrong_result():
    inputs = ffn_inputs.make({"T": 16, "H": 32, "F": 16, "E": 4, "k": 2})
    gates = np.einsum("th,ehf->tef", inputs.x, inputs.w_gate)
    rows = gates / (1 + np.exp(-gates)) * np.einsum("th,ehf->tef", inputs.x, inputs.w_up)
    every = np.einsum("tef,efh->teh", rows, inputs.w_down)
    chosen = np.take_along_axis(every, inputs.ids[:, :, None], 1)
    y = (chosen * inputs.weights[:, :, None]).sum(1)
    assert ffn_inputs.check(inputs, y)["max_error"] < 1e-5
    with pytest.raises(RuntimeError, match="wrong"):
        ffn_inputs.check(inputs, y * 1.1)


def test_the_probe_leaves_warm_up_out_and_refuses_losses_that_are_not_finite():
    clock = probe.Probe(warmup=1)
    for loss in (3.0, 2.0, 1.0):
        clock.step(lambda loss=loss: loss)
    result = clock.result(())
    assert len(result["step_seconds"]) == 2 and result["losses"] == [3.0, 2.0, 1.0]
    assert result["peak_rss_bytes"] > 1 << 20
    clock.step(lambda: float("nan"))
    with pytest.raises(RuntimeError, match="not finite"):
        clock.result(())


@pytest.mark.parametrize(
    "arguments", [["measure"], ["list", "ours-bf16-512"], ["compare", "--peers", "x"]]
)
def test_usage_errors_exit_with_2(arguments):
    command = [sys.executable, str(FOLDER / "run.py"), *arguments]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2


def test_the_list_names_every_peer(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "list"])
    assert run.main() == 0
    assert set(catalogue.PEERS) == {
        line.split()[0] for line in capsys.readouterr().out.splitlines()
    }


def test_a_table_is_of_one_instruction_set(tmp_path):
    arguments = argparse.Namespace(out=tmp_path, results=tmp_path, quick=False, name="here")
    model = {"flops_per_token": 1e8}
    for index, isa in enumerate(("avx2", "avx512_bf16")):
        taken = sample(OURS, [2.0]) | {"isa": isa, "peak_bf16_gflops": 180.0}
        taken |= {"started": f"2026010{index}", "commit": "abc", "command": "c"}
        (tmp_path / f"{index}-{OURS}.json").write_text(json.dumps(taken))
        if index == 0:
            run.write_table(arguments, model)
            assert "avx2, bf16 peak 180" in (tmp_path / "here.md").read_text()
            (tmp_path / "here.json").rename(tmp_path / "here.txt")
    with pytest.raises(run.Failure, match="samples of avx2 and avx512_bf16"):
        run.write_table(arguments, model)


def test_an_interpreter_off_the_path_is_found_newest_first(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    with pytest.raises(environments.MissingEnvironment, match="name one with --python"):
        environments.find_interpreter()
    for version in ("3.12.9", "3.12.10", "3.12-dev"):
        python = tmp_path / "pyenv" / "versions" / version / "bin" / "python3.12"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\n[ -z "$2" ] || echo {version}\n')
        python.chmod(0o755)
    assert environments.find_interpreter() == "3.12.10"
    # A stand-in on the path that does not run is passed over.
    (tmp_path / "python3.12").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "python3.12").chmod(0o755)
    assert environments.find_interpreter() == "3.12.10"

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil
import signal
import time

import pytest

import training
from anabranch import cli as command_line
from anabranch.train import checkpoint, run_folder
from training import cli, command, compiled_before, records, tensors, tiny_arguments

text = training.text

COMMANDS = ["doctor", "recipes", "data", "train", "eval", "generate", "report", "bench"]


def run_here(capsys, *arguments):
    """Runs a command in this process: exit code, stdout, stderr."""
    code = command_line.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def one_line(err):
    assert err.startswith("anabranch: ") and err.count("\n") == 1, err
    return err


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)])
def test_help_fits_one_screen(capsys, arguments):
    with pytest.raises(SystemExit) as exit_info:
        command_line.main([*arguments, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert exit_info.value.code == 0
    assert len(lines) <= 24 and max(map(len, lines)) <= 100


def test_help_is_instant_because_jax_is_not_imported():
    began = time.perf_counter()
    code, out, err = cli("train", "--help", PYTHONPROFILEIMPORTTIME="1")
    assert code == 0 and "--resume" in out
    assert " jax" not in err and "numpy" not in err
    assert time.perf_counter() - began < 30


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["tarin"], "tarin"),
        (["train", "--steps", "x"], "--steps"),
        (["train", "smoke", "--steps", "0"], "--steps 0"),
        (["train", "smok"], "smoke"),
        (["train", "smoke", "--set", "train.batchsize=4"], "train.batch_size"),
        (["train", "smoke", "--set", "model.num_expert=4"], "model.num_experts"),
        (["train", "smoke", "--set", "train.batch_size"], "path=value"),
        (["train", "smoke", "--set", "train.batch_size=many"], "integer"),
        (["train", "smoke", "--set", "model.topk=9"], "topk"),
        (["train", "smoke", "--devices", "0"], "--devices 0: must be at least 1"),
        (["train", "smoke", "--devices", "16"], "at most train.reduction_leaves=8"),
        (["train", "smoke", "--devices", "2", "--set", "train.batch_size=5"], "train.batch_size=5"),
        (["train", "smoke", "--devices", "3", "--set", "train.batch_size=6"], "4 must divide"),
        (["train", "smoke", "--devices", "2", "--set", "parallel.data=4"], "parallel.data=4"),
        (["train", "smoke", "--set", "train.reduction_leaves=6"], "power of two"),
        (["train", "smoke", "--devices", "3", "--set", "precision.recipe=mxfp8"], "power of two"),
        (["train", "smoke", "--set", "parallel.waves=0"], "waves"),
        (["train", "smoke", "--set", "precision.recipe=mxfp9"], "mxfp9"),
        (["train", "--resume", "--out", "absent"], "absent"),
        (["eval", "absent"], "absent"),
        (["generate", "absent", "--prompt", "x"], "absent"),
        (["generate", "absent", "--temperature", "-1"], "--temperature"),
        (["report", "absent"], "absent"),
        (["recipes", "deepseek-v3"], "deepseek-v3-671b"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = run_here(capsys, *arguments)
    assert code == 2 and said in one_line(err)
    assert list(tmp_path.iterdir()) == []


def test_recipes_prints_counts(capsys, tmp_path):
    code, out, _ = run_here(capsys, "recipes", "--json", tmp_path / "all.json")
    listed = json.loads((tmp_path / "all.json").read_text())
    assert code == 0 and {recipe["name"] for recipe in listed} >= {"smoke", "default"}
    assert all(recipe["name"] in out for recipe in listed)
    code, out, _ = run_here(capsys, "recipes", "olmoe-1b-7b", "--json", tmp_path / "one.json")
    one = json.loads((tmp_path / "one.json").read_text())
    assert code == 0 and one["parameters"]["total"] == 6_919_161_856
    assert "6,919,161,856" in out and one["recipe"]["model"]["num_experts"] == 64


def test_an_unwritable_json_file_is_refused_before_the_run(capsys, tmp_path):
    code, out, error = run_here(capsys, "doctor", "--json", tmp_path / "missing" / "doctor.json")
    assert (code, out) == (2, "") and "cannot write" in error


def test_doctor_names_what_it_found(capsys, tmp_path):
    code, out, _ = run_here(capsys, "doctor", "--json", tmp_path / "doctor.json")
    facts = json.loads((tmp_path / "doctor.json").read_text())
    assert code == 0
    for name in ("python", "jax", "cpu_features", "isa", "threads", "mpi", "cuda", "nccl"):
        assert name in out and facts[name]
    for name in ("peak_bf16_gflops", "peak_f32_gflops", "copy_gb_per_s"):
        assert facts[name] > 0


def test_doctor_reports_a_missing_engine(tmp_path):
    code, out, _ = cli("doctor", ANABRANCH_LIBRARY=str(tmp_path / "none.so"))
    assert code == 1 and "not usable" in out and "none.so" in out


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """A run of 8 steps through the command line, by a process that compiles everything itself."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    code, out, err = cli("train", *tiny_arguments(text), "--out", folder)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == f"report: {folder / 'report.html'}"
    return folder


@pytest.fixture
def run(whole, tmp_path):
    """A copy of that run."""
    return shutil.copytree(whole, tmp_path / "run")


def test_kill_9_and_resume_is_bitwise(text, tmp_path, whole):
    folder = tmp_path / "killed"
    process = command("train", *tiny_arguments(text, "train.steps=8"), "--out", folder)
    limit = time.monotonic() + 200
    while not checkpoint.steps(folder / "checkpoints") and time.monotonic() < limit:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    at = checkpoint.steps(folder / "checkpoints")[0]
    assert at < 8, "the kill came too late to test anything"
    # As a later kill would have left it: a log ahead of the checkpoint and cut in a line, a half checkpoint.
    with open(folder / "metrics.jsonl", "a") as log:
        log.write(json.dumps({"step": at + 1, "loss": 1e9}) + '\n{"step": 99, "lo')
    half = folder / "checkpoints" / ".step-6.writing"
    half.mkdir(exist_ok=True)
    (half / "params.safetensors").write_bytes(b"half")
    code, _, err = cli("train", "--resume", "--out", folder, "--steps", 8)
    assert (code, err) == (0, "")
    assert tensors(folder, 8) == tensors(whole, 8)
    losses = [
        [(r["step"], r["loss"], r["tokens"]) for r in records(run)] for run in (folder, whole)
    ]
    assert losses[0] == losses[1]
    assert [r["step"] for r in records(folder, "finished")] == [8]
    assert not half.exists()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing"])
def test_damaged_checkpoint_is_skipped_with_one_warning(text, run, whole, damage):
    newest = run / "checkpoints" / "step-8"
    weights = newest / "params.safetensors"
    if damage == "truncated":
        os.truncate(weights, weights.stat().st_size // 2)
    elif damage == "flipped":
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
    else:
        (newest / checkpoint.MANIFEST).unlink()
    if damage == "truncated":
        code, _, err = cli("train", "--resume", "--out", run, **compiled_before(text))
        assert tensors(run, 8) == tensors(whole, 8)
    else:
        code, out, err = cli("eval", run, **compiled_before(text))
        assert "step                6" in out
    assert code == 0 and err.count("\n") == 1
    assert "warning" in err and "step-8" in err and "skipped" in err


def test_eval_repeats_the_loss_of_training(capsys, run, tmp_path):
    code, out, _ = run_here(capsys, "eval", run, "--json", tmp_path / "eval.json")
    result = json.loads((tmp_path / "eval.json").read_text())
    assert code == 0 and result["held_out_loss"] == records(run, "eval")[-1]["held_out_loss"]
    assert "unigram" in out and "bigram" in out
    code, _, _ = run_here(capsys, "eval", run, "--batches", 0, "--json", tmp_path / "all.json")
    everything = json.loads((tmp_path / "all.json").read_text())
    assert everything["held_out_labels"] > result["held_out_labels"]


def test_generate_repeats(capsys, run, tmp_path):
    arguments = ["generate", run, "--prompt", "abc", "--tokens", 5, "--seed", 3]
    first, second = run_here(capsys, *arguments), run_here(capsys, *arguments)
    assert first == second and first[0] == 0 and first[1].startswith("abc")


def test_report_is_written_again(capsys, run):
    (run / "report.html").unlink()
    assert run_here(capsys, "report", run)[0] == 0
    assert (run / "report.html").exists()


def test_a_run_is_never_overwritten(capsys, run):
    before = (run / "metrics.jsonl").read_bytes()
    code, _, err = run_here(capsys, "train", "smoke", "--out", run)
    assert code == 2 and "--resume" in one_line(err)
    code, _, err = run_here(capsys, "train", "default", "--resume", "--out", run)
    assert code == 2 and "recipe smoke, not default" in one_line(err)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_resume_finds_the_newest_run(run, monkeypatch):
    root = run.parent / "runs"
    for age, name in enumerate(("old", "new")):
        shutil.copytree(run, root / name)
        for mark in ("config.json", "metrics.jsonl", "checkpoints"):
            os.utime(root / name / mark, (1e9 + age, 1e9 + age))
    monkeypatch.chdir(run.parent)
    assert run_folder.newest().name == "new"
    assert run_folder.newest("smoke").name == "new"


def test_out_that_cannot_be_written_is_one_line(capsys, text, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run_here(
        capsys, "train", *tiny_arguments(text), "--out", tmp_path / "file" / "x"
    )
    assert code == 1 and "file" in one_line(err)


def test_checkpoint_failure_ends_the_run_with_one_line(capsys, text, tmp_path, monkeypatch):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.safetensors.numpy, "save_file", full)
    code, _, err = run_here(capsys, "train", *tiny_arguments(text), "--out", tmp_path / "run")
    assert code == 1 and "No space left" in one_line(err)
    assert checkpoint.steps(tmp_path / "run" / "checkpoints") == []


def test_ctrl_c_is_clean(text, tmp_path):
    process = command(
        "train", *tiny_arguments(text, "train.steps=100000"), "--out", tmp_path / "run"
    )
    limit = time.monotonic() + 200
    while not checkpoint.steps(tmp_path / "run" / "checkpoints") and time.monotonic() < limit:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 130 and "go on with" in one_line(err)
    assert "Traceback" not in out


def test_head_of_a_long_print_is_no_error():
    process = command("recipes", "default")
    process.stdout.readline()
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    process.wait()

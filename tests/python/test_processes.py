# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Ranks that are processes started by mpirun; skipped where the engine was built without MPI."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

import training
from anabranch import _processes
from anabranch.errors import UsageError
from anabranch.train import trainer
from test_ranks import REPORTED
from training import records, tensors, tiny, tiny_arguments

text = training.text

MPIRUN = shutil.which("mpirun")
ENVIRONMENT = _processes.LAUNCHER_ENVIRONMENT
needs_mpi = pytest.mark.skipif(
    MPIRUN is None or not _processes.module_path().exists(),
    reason="no mpirun, or the engine was built without MPI",
)
# Leaves the number of each rank's process in the current folder.
RANK = 'echo $$ > pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK} && exec "$@"'


def start(ranks: int, *command: object, folder: pathlib.Path, **environment: str):
    """`command`, arguments of Python, in every rank."""
    return subprocess.Popen(
        [MPIRUN, "-np", str(ranks), "sh", "-c", RANK, "rank", sys.executable, *map(str, command)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, **ENVIRONMENT, **environment},
    )  # fmt: skip


def train(ranks: int, *arguments: object, folder: pathlib.Path, **environment: str):
    folder.mkdir(exist_ok=True)
    command = ("-m", "anabranch", "train", *arguments)
    return start(ranks, *command, folder=folder, **environment)


def finished(process: subprocess.Popen) -> None:
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, (out, err)


def faults(process: subprocess.Popen) -> list[str]:
    """What Anabranch says in the end, one line for each rank that says something."""
    out, err = process.communicate(timeout=400)
    assert process.returncode != 0, (out, err)
    # JAX would end a rank that lost its service without naming the one that took it along.
    assert "JAX distributed service detected" not in err, err
    return [line for line in err.splitlines() if line.startswith("anabranch: ")]


def rank_pid(folder: pathlib.Path, rank: int) -> int:
    return int((folder / f"pid.{rank}").read_text())


def await_steps(run: pathlib.Path, count: int) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if (run / "metrics.jsonl").exists() and len(records(run)) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{run} has not reached step {count}")


def assert_same_run(left: pathlib.Path, right: pathlib.Path, step: int) -> None:
    def reported(run):
        return [[record[name] for name in REPORTED] for record in records(run)]

    assert reported(left) == reported(right)
    expected = tensors(right, step)
    for file, data in tensors(left, step).items():
        assert data == expected[file], file


@needs_mpi
def test_processes_train_with_the_bits_of_one_device_and_resume_as_any_number(
    text, tmp_path, monkeypatch
):
    monkeypatch.setattr(trainer, "SAMPLE_TOKENS", 3)
    cached = training.compiled_before(text)
    trainer.run(tiny(text), tmp_path / "one", steps=4)
    two = tmp_path / "two"
    process = train(
        2, *tiny_arguments(text), "--steps", 2, "--out", two, folder=tmp_path / "a", **cached
    )
    finished(process)
    # What two processes began, three finish; test_ranks.py has devices.
    process = train(3, "--resume", "--steps", 4, "--out", two, folder=tmp_path / "b", **cached)
    finished(process)
    assert_same_run(two, tmp_path / "one", 4)


@needs_mpi
def test_groups_of_processes_train_with_the_bits_of_groups_of_devices(text, tmp_path):
    groups = "parallel.data=2"
    trainer.run(tiny(text, groups, "parallel.devices=4"), tmp_path / "devices", steps=2)
    process = train(
        4, *tiny_arguments(text, groups), "--steps", 2, "--out", tmp_path / "processes",
        folder=tmp_path / "a", **training.compiled_before(text),
    )  # fmt: skip
    finished(process)
    assert_same_run(tmp_path / "processes", tmp_path / "devices", 2)


@needs_mpi
@pytest.mark.parametrize("culprit", [0, 1])
def test_a_rank_that_is_killed_is_named_with_step_and_operation(text, tmp_path, culprit):
    shared_before = set(os.listdir("/dev/shm"))
    run = tmp_path / "run"
    process = train(
        2, *tiny_arguments(text), "--steps", 100000, "--out", run, folder=tmp_path,
        **training.compiled_before(text),
    )  # fmt: skip
    await_steps(run, 3)
    os.kill(rank_pid(tmp_path, culprit), signal.SIGKILL)
    began = time.monotonic()
    lines = faults(process)
    assert time.monotonic() - began < 20
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"anabranch: rank {1 - culprit}: step "), lines
    assert f": rank {culprit} (process {rank_pid(tmp_path, culprit)}) has ended" in lines[0], lines
    assert set(os.listdir("/dev/shm")) <= shared_before


@needs_mpi
def test_a_rank_that_stops_is_named_in_time_and_one_that_recovers_changes_nothing(text, tmp_path):
    run = tmp_path / "run"
    process = train(
        2, *tiny_arguments(text), "--steps", 100000, "--out", run, folder=tmp_path,
        ANABRANCH_COMM_TIMEOUT_SECONDS="20", **training.compiled_before(text),
    )  # fmt: skip
    await_steps(run, 3)
    pid = rank_pid(tmp_path, 1)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1)
    done = len(records(run))
    os.kill(pid, signal.SIGCONT)
    await_steps(run, done + 2)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    lines = faults(process)
    assert time.monotonic() - began < 60
    assert lines[0].startswith("anabranch: rank 0: step "), lines
    assert (
        ": rank 1 did not come within 20 s; rank 0 waited; the last call of rank 1 was " in lines[0]
    )


@needs_mpi
def test_ranks_started_with_different_arguments_are_refused(text, tmp_path):
    arguments = ["-m", "anabranch", "train", *tiny_arguments(text), "--out", tmp_path / "run"]
    one = ["-np", "1", sys.executable, *map(str, arguments)]
    result = subprocess.run(
        [MPIRUN, *one, "--seed=1", ":", *one, "--seed=2"],
        capture_output=True, text=True, timeout=240, env={**os.environ, **ENVIRONMENT},
    )  # fmt: skip
    lines = [line for line in result.stderr.splitlines() if line.startswith("anabranch: ")]
    assert lines == [
        "anabranch: rank 1 was started with --seed=2, rank 0 with --seed=1; all ranks must be started alike"
    ]
    assert not (tmp_path / "run").exists()


EXCHANGE = """
import functools, sys
import anabranch as ab
from anabranch import _processes
group = _processes.start_processes()
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from anabranch.ops.expert_parallel import ExpertParallel

tokens, topk, experts, hidden = 6, 2, 5, 8
rng = np.random.default_rng(7)
ids = np.argsort(rng.random((group.size * tokens, experts)), axis=1)[:, :topk].astype(np.int32)
x = rng.integers(-8, 8, (group.size * tokens, hidden)).astype(np.float32)
ep = ExpertParallel(num_experts=experts, topk=topk, transport="mpi")

wired = ExpertParallel(num_experts=experts, topk=topk, wire="mxfp8")
rough = rng.normal(size=x.shape).astype(np.float32)

def body(ids, x, rough):
    plan = ep.prepare(ids)
    def loss(x):
        y = ep.combine(plan, ep.dispatch(plan, x))
        return jnp.sum(y * y), y
    (_, y), gradient = jax.value_and_grad(loss, has_aux=True)(x)
    sent = wired.dispatch(plan, rough, jnp.ones(ids.shape))[0]
    return y, gradient, wired.combine(plan, sent)

mesh = Mesh(np.array(jax.devices()), ("expert",))
run = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("expert"), out_specs=P("expert")))
by_expert = jax.sharding.NamedSharding(mesh, P("expert"))
put = lambda a: jax.make_array_from_callback(a.shape, by_expert, lambda i: a[i])
y, gradient, sums = run(put(ids), put(x), put(rough))
mine = slice(group.rank * tokens, (group.rank + 1) * tokens)
np.testing.assert_array_equal(y.addressable_data(0), topk * x[mine])
np.testing.assert_array_equal(gradient.addressable_data(0), 2 * topk * topk * x[mine])
values = np.asarray(ab.quantize(jnp.asarray(rough[mine]), "mxfp8_e4m3").dequantize())
np.testing.assert_array_equal(sums.addressable_data(0), topk * values)

# At most three parts of four waves each, one rank's tokens all to one expert: beside one device.
rows = group.size * tokens
ids[: rows // 2] = [0, 1]
draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
weights, y_grad = draw(rows, topk), draw(rows, hidden)
matrices = [draw(experts, hidden, 4), draw(experts, hidden, 4), draw(experts, 4, hidden)]
place = ExpertParallel(num_experts=experts, topk=topk).slots(group.size)
slots = group.size * -(-experts // group.size)
spread = lambda w: np.zeros((slots, *w.shape[1:]), w.dtype)

def layer(x, ids, weights, y_grad, *matrices, ep=None):
    f = lambda x, w, *m: ab.moe_ffn(x, ab.Routing(ids, w, None), *m, expert_parallel=ep)
    y, pull = jax.vjp(f, x, weights, *matrices)
    return y, *pull(y_grad)

expected = jax.jit(layer)(x, ids, weights, y_grad, *matrices)
padded = []
for matrix in matrices:
    padded.append(spread(matrix))
    padded[-1][place] = matrix
chunked = ExpertParallel(num_experts=experts, topk=topk, chunks=3, waves=4)
body = functools.partial(layer, ep=chunked)
run = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("expert"), out_specs=P("expert")))
actual = run(*map(put, (x, ids, weights, y_grad, *padded)))
for have, want in zip(actual[:3], expected[:3], strict=True):
    np.testing.assert_array_equal(have.addressable_data(0), np.asarray(want)[mine])
for have, want in zip(actual[3:], expected[3:], strict=True):
    have = np.asarray(have.addressable_data(0))
    own = place // len(have) == group.rank
    # Three f32 sums of at most 12 rows in place of one.
    bound = 15 * 2.0**-24 * 12 * np.abs(want).max()
    np.testing.assert_allclose(have[place[own] % len(have)], np.asarray(want)[own], rtol=0, atol=bound)

# Ragged pieces and their gradients, by our function and by JAX's own primitive: beside indexing.
sizes = rng.integers(0, 5, (group.size, group.size)).astype(np.int32)
inputs, outputs = (np.cumsum(sizes, axis, dtype=np.int32) - sizes for axis in (1, 0))
count = 5 * group.size
operand, output, cotangent = (rng.integers(-8, 8, (group.size, count, 3)) for _ in range(3))
want, d_operand, d_output = output.copy(), np.zeros_like(operand), cotangent.copy()
for source, target in np.ndindex(sizes.shape):
    there = slice(outputs[source, target], outputs[source, target] + sizes[source, target])
    here = slice(inputs[source, target], inputs[source, target] + sizes[source, target])
    want[target, there] = operand[source, here]
    d_operand[source, here] = cotangent[target, there]
    d_output[target, there] = 0
vectors = tuple(np.ascontiguousarray(v) for v in (inputs, sizes, outputs, sizes.T))

def body(operand, output, cotangent, *vectors, exchange):
    vectors = [vector[0] for vector in vectors]
    f = lambda a, b: exchange(a, b, *vectors, axis_name="expert")
    y, pull = jax.vjp(f, operand[0], output[0])
    return tuple(a[None] for a in (y, *pull(cotangent[0])))

for dtype in ("float32", "bfloat16"):
    given = [put(a.astype(dtype)) for a in (operand, output, cotangent)] + [put(v) for v in vectors]
    with ab.use_in_jax():
        for exchange in (ab.ragged_all_to_all, jax.lax.ragged_all_to_all):
            one = functools.partial(body, exchange=exchange)
            run = jax.jit(jax.shard_map(one, mesh=mesh, in_specs=P("expert"), out_specs=P("expert")))
            # JAX's own rule for the gradient of `output` is not ours to answer for.
            kept = 3 if exchange is ab.ragged_all_to_all else 2
            for have, expected in list(zip(run(*given), (want, d_operand, d_output)))[:kept]:
                have = np.asarray(have.addressable_data(0)[0], np.float32)
                np.testing.assert_array_equal(have, expected[group.rank])

# A size that its receiver does not expect is named on every rank.
given[4] = put(sizes + (np.arange(group.size) == 1)[:, None].astype(np.int32))
try:
    with ab.use_in_jax():
        jax.block_until_ready(run(*given))
except Exception as error:
    told = str(error)
assert "rank 1 sends" in told and "to rank 0, which expects" in told, told
sys.stdout.write(f"rank {group.rank} ok\\n")
sys.stdout.flush()
_processes.end()
"""


@needs_mpi
def test_rows_travel_between_processes_and_back_with_gradients(tmp_path):
    (tmp_path / "exchange.py").write_text(EXCHANGE)
    environment = {"XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = start(2, "exchange.py", folder=tmp_path, **environment)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, (out, err)
    assert sorted(line for line in out.splitlines() if line.startswith("rank")) == [
        "rank 0 ok", "rank 1 ok",
    ]  # fmt: skip


# Two groups of two processes that hold all experts each, and sums over everybody.
GROUPS = """
import ctypes, os, signal, sys, time
import anabranch as ab
from anabranch import _agreement, _processes, _register
group = _processes.start_processes()
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P
from anabranch.ops import token_tree

ab.use_in_jax()
tokens, experts, hidden = 4, 3, 8
rng = np.random.default_rng(5)
ids = np.argsort(rng.random((4 * tokens, experts)), axis=1)[:, :2].astype(np.int32)
x = rng.integers(-8, 8, (4 * tokens, hidden)).astype(np.float32)
ep = ab.ExpertParallel(num_experts=experts, topk=2)
tree = token_tree.TokenTree(1, (("expert", 2), ("data", 2)), True)

def body(ids, x):
    with token_tree.scope(tree):
        plan = ep.prepare(ids)
        y = ep.combine(plan, ep.dispatch(plan, x))
        shared = token_tree.replicated(jnp.float32(1), besides="expert")
        scale = jax.grad(lambda s: token_tree.replicated(s, besides="expert") * jnp.sum(x))(shared)
        total = token_tree.sum_over_ranks(jnp.sum(x))
        rows = plan.group_sizes.sum()
    # Each rank of a group sends its rows to the other.
    other = 1 - jax.lax.axis_index("expert")
    to_other = jnp.where(jnp.arange(2) == other, tokens, 0)
    nothing = jnp.zeros_like(to_other)
    swapped = jax.lax.ragged_all_to_all(
        x, jnp.zeros_like(x), nothing, to_other, nothing, to_other, axis_name="expert")
    return y, swapped, jnp.stack([scale, total, rows.astype(jnp.float32)])[None]

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "expert"))
both = P(("data", "expert"))
run = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=both, out_specs=both, check_vma=False))
put = lambda a: jax.make_array_from_callback(a.shape, jax.sharding.NamedSharding(mesh, both), lambda i: a[i])
y, swapped, sums = run(put(ids), put(x))
theirs = slice((group.rank ^ 1) * tokens, ((group.rank ^ 1) + 1) * tokens)
np.testing.assert_array_equal(swapped.addressable_data(0), x[theirs])
by_rank = x.reshape(4, -1).sum(axis=1)
place = group.rank % 2
mine = slice(group.rank * tokens, (group.rank + 1) * tokens)
np.testing.assert_array_equal(y.addressable_data(0), 2 * x[mine])
routed = ids.reshape(2, -1)[group.rank // 2]
owned = np.isin(routed, [0, 1] if place == 0 else [2]).sum()
np.testing.assert_array_equal(sums.addressable_data(0)[0], [by_rank[place] + by_rank[place + 2], by_rank.sum(), owned])
function = _register.library().anabranch_set_comm_timeout
function.argtypes = (ctypes.c_double,)
_agreement.from_first("timeout", lambda: None)
function(2)
if group.rank == 3:
    os.kill(os.getpid(), signal.SIGSTOP)
try:
    jax.block_until_ready(run(put(ids), put(x)))
except Exception as error:
    # Rank 0 has no call with rank 3 alone: it waits for rank 2, which waits for rank 3.
    late = "rank 2 did not come within 2 s (it waited for rank 3)"
    assert (late if group.rank == 0 else "rank 3 did not come within 2 s") in str(error), error
    sys.stdout.write(f"rank {group.rank} ok\\n")
    sys.stdout.flush()
open(f"told.{group.rank}", "w").close()
while len([name for name in os.listdir() if name.startswith("told.")]) < 3:
    time.sleep(0.01)
if group.rank == 0:
    os.kill(int(open("pid.3").read()), signal.SIGKILL)
os._exit(0)
"""


@needs_mpi
def test_groups_of_processes_exchange_among_themselves_and_name_a_stopped_rank(tmp_path):
    (tmp_path / "groups.py").write_text(GROUPS)
    environment = {"XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    out, err = start(4, "groups.py", folder=tmp_path, **environment).communicate(timeout=400)
    for rank in range(3):
        assert f"rank {rank} ok" in out, (out, err)


# What rank 0 does for all takes longer than ranks wait for each other; one that has stopped is still found.
WORK = """
import os, signal, sys, time
from anabranch import _agreement, _processes
group = _processes.start()
assert _agreement.from_first("evaluating", lambda: time.sleep(3) or 7) == 7
sys.stdout.write(f"rank {group.rank} ok\\n")
sys.stdout.flush()
try:
    _agreement.from_first("evaluating", lambda: os.kill(os.getpid(), signal.SIGSTOP))
except Exception as error:
    assert "evaluating" in str(error) and "rank 0 did not come within 1 s" in str(error), error
    sys.stdout.write("rank 1 was told\\n")
    sys.stdout.flush()
    os.kill(int(open("pid.0").read()), signal.SIGKILL)
os._exit(0)
"""


@needs_mpi
def test_what_the_first_rank_does_for_all_may_take_longer_than_ranks_wait(tmp_path):
    (tmp_path / "work.py").write_text(WORK)
    path = os.pathsep.join(sys.path)
    process = start(
        2, "work.py", folder=tmp_path, PYTHONPATH=path, ANABRANCH_COMM_TIMEOUT_SECONDS="1"
    )
    out, err = process.communicate(timeout=400)
    for line in ("rank 0 ok", "rank 1 ok", "rank 1 was told"):
        assert line in out, (out, err)


def test_an_engine_without_mpi_says_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(_processes, "module_path", lambda: tmp_path / "lib_anabranch_mpi.so")
    with pytest.raises(UsageError, match="this build has no MPI .*install libopenmpi-dev"):
        _processes.start()


def test_a_launcher_of_another_mpi_is_a_usage_error_of_one_line(text, tmp_path):
    code, out, err = training.cli(
        "train", *tiny_arguments(text), "--out", tmp_path / "run", PMI_SIZE="2"
    )
    assert code == 2, (out, err)
    assert "the launcher started 2 processes, but" in err or "this build has no MPI" in err, err
    assert len(err.splitlines()) == 1, err

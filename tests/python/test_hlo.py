# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

import chrome_trace
from anabranch import _register, cli
from anabranch.errors import UsageError
from anabranch.planner import hardware, hlo

TESTDATA = pathlib.Path(__file__).parents[2] / "src" / "sim" / "hlo" / "testdata"
LAYERS = TESTDATA / "layers.hlo"
OFFLOAD = TESTDATA / "scan_offload.hlo"


def run(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def analyze(path=LAYERS, hw="h100:64", events=False, **options):
    kind, count = hardware.parse(hw)
    return hlo.analyze(path.read_bytes(), kind, count, hlo.Options(**options), events=events)


def test_prints_what_is_exposed_and_writes_json_trace_and_profile(capsys, tmp_path):
    code, out, _ = run(
        capsys, "hlo", OFFLOAD, "--hw", "h100:64", "--json", tmp_path / "o.json",
        "--trace", tmp_path / "t.json", "--emit-pgle", tmp_path / "p.pbtxt",
        "--what-if", "nic=2x,limit=2,multi_stream=on,schedule=xla",
    )  # fmt: skip
    document = json.loads((tmp_path / "o.json").read_text())
    assert code == 0 and "all-gather-start" in out and "host (d2h)" in out and "NIC" in out
    assert set(document["orders"]) >= {"as given", "no overlap", "XLA, one in flight"}
    assert document["calibration"]["id"] and document["seconds"] > 0
    trace = chrome_trace.check((tmp_path / "t.json").read_text())
    operations = [event for event in trace if event["ph"] == "X"]
    end = max(event["ts"] + event["dur"] for event in operations)
    assert end == pytest.approx(document["seconds"] * 1e6, abs=0.1)
    profile = (tmp_path / "p.pbtxt").read_text()
    line = re.compile(r'costs \{ name: "[\w.\-]+" cost_us: [\d.e+-]+ \}')
    assert profile and all(line.fullmatch(text) for text in profile.splitlines())


def test_time_adds_up():
    result = analyze(OFFLOAD, events=True)
    streams = result["streams"]
    exposed = sum(stream["exposed"] for stream in streams.values())
    assert result["seconds"] == pytest.approx(streams["compute"]["busy"] + exposed, rel=1e-6)
    assert len(result["events"]) == sum(stream["count"] for stream in streams.values())
    assert analyze(OFFLOAD) == analyze(OFFLOAD)


def test_what_if_has_the_right_sign():
    kind, count = hardware.parse("h100:64")
    text = OFFLOAD.read_bytes()

    def seconds(words):
        return hlo.analyze(text, *_changed(kind, count, words))["seconds"]

    def _changed(kind, count, words):
        changed, options = hlo.what_if(kind, hlo.Options(), words)
        return changed, count, options

    given = seconds("")
    assert seconds("nic=2x") < given < seconds("nic=0.5x")
    assert seconds("hbm=2x") < given and seconds("host=0.01x") > given
    assert seconds("overlap=off") > given
    assert seconds("sm=0") <= given <= seconds("sm=66")
    assert seconds("schedule=xla,limit=2,multi_stream=on") <= seconds("schedule=xla,overlap=off")


def test_one_device_has_no_network(tmp_path):
    path = tmp_path / "one.hlo.txt"
    path.write_text(
        re.sub(r"replica_groups=\S+?(?=, )", "replica_groups={{0}}", LAYERS.read_text())
    )
    result = analyze(path, "h100:1")
    assert all(result["streams"][name]["busy"] == 0 for name in ("ep", "dp", "pp"))


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("once upon a time", ["--hw", "h100:64"], "no line begins with HloModule"),
        ("", ["--hw", "h100:64"], "no line begins with HloModule"),
        ("HloModule m\nENTRY e {\n a = f32[2] neg(b)\n}\n", ["--hw", "h100:8"], "line 3"),
        (None, ["--hw", "h100:4"], "names device"),
        (None, ["--hw", "h1000:64"], "h100"),
        (None, ["--hw", "h100"], "NAME:COUNT"),
        (None, ["--hw", "h100:-8"], "positive"),
        (None, ["--hw", "h100:0"], "positive"),
        (None, ["--hw", "h100:64", "--what-if", "nick=2x"], "nearest: nic"),
        (None, ["--hw", "h100:64", "--what-if", "nic=fast"], "number"),
        (None, ["--hw", "h100:64", "--what-if", "nic=-1"], "positive"),
        (None, ["--hw", "h100:64", "--what-if", "limit=0"], "limits are 1"),
        (None, ["--hw", "h100:64", "--what-if", "limit=-3"], "whole number"),
        (None, ["--hw", "h100:64", "--what-if", "overlap=maybe"], "on or off"),
        (None, ["--hw", "h100:64", "--what-if", "schedule=best"], "one of given, xla"),
    ],
)
def test_usage_errors_are_one_line(capsys, tmp_path, text, arguments, said):
    path = tmp_path / "step.hlo.txt"
    path.write_text(LAYERS.read_text() if text is None else text)
    code, out, err = run(capsys, "hlo", path, *arguments)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1, err


def test_a_missing_or_binary_file_is_one_line(capsys, tmp_path):
    code, _, err = run(capsys, "hlo", tmp_path / "none.txt", "--hw", "h100:8")
    assert code == 2 and "none.txt" in err
    (tmp_path / "module.pb").write_bytes(b"\x08\0\0binary")
    code, _, err = run(capsys, "hlo", tmp_path / "module.pb", "--hw", "h100:8")
    assert code == 2 and "as_text" in err


@pytest.mark.parametrize("command", ["hlo", "calib"])
def test_help_fits_one_screen(capsys, command):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 100


def test_options_are_frozen_and_checked():
    kind, _ = hardware.parse("h100:8")
    with pytest.raises(UsageError, match="unknown name"):
        hlo.what_if(kind, hlo.Options(), "speed=2")


# Our own train step, compiled for accelerators that are not here.
COMPILE = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec
from anabranch import _register, models, recipes

for name, function in _register.registrations(_register.library()).items():
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(function), platform="CUDA")
text = "".join(line for line in open(sys.argv[1]) if not line.startswith("#"))
topology = topologies.get_topology_desc(platform="cuda", target_config=text, topology="1x1x8")
mesh = jax.sharding.Mesh(np.array(topology.devices), ("data",))
config = recipes.get("smoke").model
whole, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
shapes = jax.eval_shape(lambda key: models.init(key, config), jax.random.key(0))
shapes = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=whole), shapes)
tokens = jax.ShapeDtypeStruct((8, 64), jnp.int32, sharding=split)
batch = dict.fromkeys(("tokens", "labels", "segment_ids", "positions"), tokens)

def gradients(params, batch):
    found = jax.grad(lambda p: models.loss(p, batch, config)[0])(params)
    return jax.tree.map(lambda g: jax.lax.pmean(g, "data"), found)

specs = (PartitionSpec(), PartitionSpec("data"))
step = jax.shard_map(gradients, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
lowered = jax.jit(step).trace(shapes, batch).lower(lowering_platforms=("cuda",))
open(sys.argv[2], "w").write(lowered.compile().as_text())
"""


@pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None
    or importlib.util.find_spec("jax_plugins.xla_cuda13") is None,
    reason="needs jax-cuda13-plugin and jax-cuda13-pjrt (no GPU)",
)
def test_our_own_step_compiled_for_eight_h100s(tmp_path):
    script, text = tmp_path / "compile.py", tmp_path / "step.hlo.txt"
    script.write_text(COMPILE)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    command = [sys.executable, script, TESTDATA / "h100_target.txtpb", text]
    subprocess.run(command, check=True, env=environment, timeout=300)
    result = analyze(text, "h100:8")
    assert result["scheduled"] and result["streams"]["dp"]["count"] >= 1
    # Our calls are priced by what they multiply, not by their operands' bytes.
    assert not set(_targets(result["guessed_calls"])) & set(_register.TARGETS)
    # The gradients of all parameters are summed over the eight.
    parameters = sum(entry["bytes"] for entry in result["asynchronous"] if entry["stream"] == "dp")
    assert parameters > 1e5


def _targets(calls):
    return [call.removeprefix("anabranch_") for call in calls]

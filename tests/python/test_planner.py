# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The planner against published figures, hand-made cases and nonsense from the command line."""

import json
import time

import pytest

import chrome_trace
from anabranch import cli
from anabranch.errors import UsageError
from anabranch.planner import (
    hardware,
    layout,
    replay,
    scaling,
    scenario,
    search,
    simulate,
    subject,
    trace,
)

DSV3 = "deepseek-v3-671b"
# SimuMax's four-layer DeepSeek-V3: one dense block, three of experts.
DSV3_4 = f"{DSV3}:model.num_layers=4:model.num_dense_layers=1"


def run(**words):
    words = {"model": DSV3, "hw": "gb200:256", "layout_text": "pp4,vp4,ep64", "batch": 4096} | words
    return simulate.simulate(scenario.make(**words))


@pytest.mark.parametrize(
    ("model", "mtp", "causal", "published"),
    [
        (DSV3, 0, True, 250.45),  # TPU7x recipe
        (DSV3, 1, True, 260.0),  # Megatron-Bridge
        (DSV3, 0, False, 281.15),  # TPU v5p recipe
        ("qwen3-235b", 0, True, 148.33),
        ("qwen3-30b", 0, True, 23.10),
        ("kimi-k2", 0, True, 204.6),
    ],
)
def test_flops_per_token_are_the_published_ones(model, mtp, causal, published):
    config = subject.get(model).model
    ours = subject.flops_per_token(config, 4096, mtp_layers=mtp, causal=causal) / 1e9
    assert abs(ours / published - 1) < 0.005


@pytest.mark.parametrize(
    ("words", "published"),
    [
        ({"model": "qwen3-30b", "hw": "h100:16", "layout_text": "ep16", "batch": 1024}, 62.17),
        ({"model": DSV3_4, "hw": "b200:8", "layout_text": "ep8", "batch": 32}, 104.3),
        ({"model": DSV3_4, "hw": "b200:8", "layout_text": "pp2,ep4", "batch": 16}, 114.0),
    ],
)
def test_memory_is_within_3_percent_of_published_peaks(words, published):
    assert abs(run(**words)["memory_gib_max_rank"] / published - 1) < 0.03


def test_memory_that_ran_out_is_not_said_to_fit():
    # MaxText's dropless path with a worst-case buffer on B200 (about 2.6 TiB asked for): min(EP, E/k)
    # times the balanced rows.
    words = {"hw": "b200:64", "layout_text": "fsdp8,ep8,mbs1", "batch": 64}
    result = run(**words, options="dispatch_factor=8,recompute=none")
    assert not result["fits"] and result["binding_constraint"] == "memory"


def test_json_has_what_the_interface_promises():
    result = run()
    for key in ("step_seconds", "tokens_per_second_per_gpu", "tflops_per_gpu", "mfu", "bubble_share",
                "memory_gib_max_rank", "fits", "binding_constraint"):  # fmt: skip
        assert key in result
    assert {"ep", "dp", "pp", "offload"} <= set(result["exposed"])
    assert result["calibration"]["id"] and "held_out_mape" in result["calibration"]
    json.dumps(result)
    tokens = 4096 * 4096 / result["step_seconds"] / 256
    assert result["tokens_per_second_per_gpu"] == pytest.approx(tokens)
    assert result["tflops_per_gpu"] == pytest.approx(tokens * result["flops_per_token"] / 1e12)
    parts = sum(result["exposed"].values()) + result["compute_seconds"]
    parts += result["bubble_share"] * result["step_seconds"]
    assert parts == pytest.approx(result["step_seconds"], rel=1e-9)


def test_1024_gpus_take_seconds_and_repeat_to_the_bit():
    words = {"hw": "gb200:1024", "recipe": "mxfp8", "batch": 16384}
    start = time.perf_counter()
    first = run(**words)
    assert time.perf_counter() - start < 10
    assert run(**words) == first


def test_recompute_auto_takes_the_least_that_fits():
    kept = run(options="recompute=none")
    chosen = run()
    assert not kept["fits"] and chosen["fits"]
    assert chosen["layout_full"]["recompute"] in layout.RECOMPUTE_LADDER[1:]


@pytest.mark.parametrize("what", ["nic=2x", "nvlink=2x", "hbm=2x", "flops=2x", "host=2x"])
@pytest.mark.parametrize(
    "plan", ["pp4,vp4,ep64", "pp8,ep32", "fsdp32,ep8,offload=latent,recompute=norm"]
)
def test_faster_hardware_is_never_slower(what, plan):
    # A shorter collective moves contention elsewhere: a few parts in 10^3 (see the engine's test).
    words = {"layout_text": plan, "options": "" if "recompute" in plan else "recompute=latent"}
    assert run(**words, what_if=what)["step_seconds"] <= run(**words)["step_seconds"] * 1.002


def test_more_memory_never_fits_less_and_skew_never_helps():
    plain = run(options="recompute=latent")
    assert run(options="recompute=latent", what_if="memory=2x")["fits"] >= plain["fits"]
    skewed = run(options="recompute=latent", imbalance="zipf:0.4")
    assert skewed["step_seconds"] > plain["step_seconds"]
    assert skewed["memory_gib_max_rank"] > plain["memory_gib_max_rank"]


def test_loads_of_a_run_are_read(tmp_path):
    experts = subject.get("qwen3-30b").model.num_experts
    load = [[2.0] + [1.0] * (experts - 1), [1.0] * experts]
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": 1, "expert_load": [[1] * experts] * 2}, {"step": 2, "expert_load": load},
             {"event": "finished"}]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = {"model": "qwen3-30b", "hw": "h100:8", "layout_text": "ep8", "batch": 64}
    result = run(**words, imbalance=str(path))
    per_rank = experts // 8
    hot = 8 * (per_rank + 1) / (experts + 1)  # every other layer is balanced
    assert result["rank_load"] == pytest.approx((hot + 1) / 2)


def test_layouts_read_both_forms():
    one = layout.parse("PP4 vpp=4, ep64, zero1", "overlap=off;recompute=mla_up_proj+moe_act")
    assert (one.pp, one.vp, one.ep, one.overlaps) == (4, 4, 64, False)
    assert one.recompute == "latent+expert_activation"
    assert layout.parse(one.describe().replace("overlap=off,", "")).pp == 4


def test_plan_ranks_what_is_possible():
    model = f"{DSV3_4}:model.num_experts=16"
    found = search.plan(scenario.make(model=model, hw="h100:8", batch=64), top=3)
    speeds = [result["tokens_per_second_per_gpu"] for result in found["ranked"]]
    assert len(speeds) == 3 and speeds == sorted(speeds, reverse=True)
    assert found["possible"] + sum(found["refused"].values()) == found["tried"]
    assert set(found["ranked"][0]["fits_at_zipf"]) == {"0", "0.2", "0.4"}


def test_weak_scaling_loses_to_jitter_and_data_parallelism():
    base = scenario.make(model=DSV3, hw="gb200:256", layout_text="pp4,vp4,ep64", batch=4096,
                         options="recompute=latent")  # fmt: skip
    found = scaling.scale(base, scaling.counts(256, 1024), 0.01, 3)
    assert [row["count"] for row in found["rows"]] == [256, 512, 1024]
    assert found["rows"][0]["efficiency"] == 1
    assert 0.9 < found["rows"][-1]["efficiency"] < 1
    assert found["rows"][-1]["exposed"]["dp"] > found["rows"][0]["exposed"]["dp"]


def test_weak_scaling_is_within_2_points_of_the_published():
    jax, megatron = (answer["rows"][-1] for _, answer in replay.weak_scaling(0.01, 5))
    assert jax["count"] == megatron["count"] == 1024
    assert abs(jax["efficiency"] - 0.97) < 0.02
    assert abs(megatron["efficiency"] - 0.985) < 0.02


@pytest.mark.parametrize("words", ["pp2,ep4", "pp2,ep4,vp2,overlap=on", "fsdp,ep4,offload=norm"])
def test_traces_are_chrome_json(words):
    model = DSV3_4.replace("layers=4", "layers=8")
    one = scenario.make(model=model, hw="b200:8", layout_text=words, batch=16)
    result = simulate.simulate(one, trace=True)
    events = chrome_trace.check(trace.perfetto(result["tasks"], result))
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(result["tasks"])
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == [f"stage {n}, busiest rank" for n in range(len(names))]
    last = max(event["ts"] + event["dur"] for event in spans)
    assert last == pytest.approx(result["step_seconds"] * 1e6, abs=0.1)
    assert {event["name"] for event in events if event["ph"] == "C"} >= {"compute", "collectives"}


@pytest.mark.parametrize("name", hardware.names())
def test_every_constant_of_every_accelerator_has_a_source(name):
    found = hardware.get(name)
    assert set(found.constants) == set(hardware.FIELDS) == set(found.sources)
    assert all(found.sources.values())


def test_hardware_files_are_checked(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "h100"\nhbm_gib = { value = 96, source = "mine" }\n')
    assert hardware.get(str(path)).constants["hbm_gib"] == 96
    for line, said in [
        ('hbm_gb = { value = 1, source = "x" }', "unknown constant hbm_gb; nearest: hbm_gib"),
        ('hbm_gib = { value = -1, source = "x" }', "must be positive"),
        ("hbm_gib = 96", "must be { value"),
        ('hbm_gib = { value = "a", source = "x" }', "is no number"),
        ("hbm_gib = = 3", "not valid TOML"),
    ]:
        path.write_text(f'base = "h100"\n{line}\n')
        with pytest.raises(UsageError, match=said):
            hardware.get(str(path))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hw", "gb200"], "NAME:COUNT"),
        (["--hw", "gb200:-4"], "NAME:COUNT"),
        (["--hw", "gb20:64"], "nearest: gb200"),
        (["--model", "dsv4"], "no such recipe"),
        (["--recipe", "fp7"], "--recipe fp7"),
        (["--layout", "pp0"], "at least 1"),
        (["--layout", "qq4"], "unknown word"),
        (["--layout", "pp3"], "does not divide"),
        (["--layout", "ep512"], "ep=512"),
        (["--gbs", "4097"], "multiple of dp * mbs"),
        (["--gbs", "-1"], "positive integer"),
        (["--imbalance", "zipf:-1"], "exponent"),
        (["--imbalance", "nothing.json"], "existing file"),
        (["--what-if", "nics=2x"], "nics=2x: unknown name; nearest: nic"),
        (["--what-if", "nic"], "as nic=2x"),
        (["--what-if", "overlap=maybe"], "--what-if overlap=maybe: must be on or off"),
        (["--model", f"{DSV3}:model.num_layer=4"], f"--model {DSV3}: model.num_layer: no such"),
        (["--recompute", "norm"], "anabranch sim --help"),
        (["--what-if", "nic=fast"], "must be a number"),
    ],
)
def test_nonsense_gets_one_clear_line(words, said, capsys):
    base = {"--model": DSV3, "--hw": "gb200:256", "--layout": "pp4,vp4,ep64"}
    base |= dict(zip(words[::2], words[1::2], strict=True))
    assert cli.main(["sim", *(part for pair in base.items() for part in pair)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert said in captured.err


def test_commands_write_json_and_pages(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    common = ["--model", DSV3_4, "--hw", "b200:8"]
    out = tmp_path / "out.json"
    page = tmp_path / "page.html"
    lines = ["--layout", "pp2,ep4", "--gbs", "32", "--json", str(out)]
    assert cli.main(["sim", *common, *lines, "--html", str(page)]) == 0
    assert json.loads(out.read_text())["fits"] and "<svg" in page.read_text()
    assert cli.main(["fit", *common, *lines]) == 0
    assert "fits" in capsys.readouterr().out
    sizes = ["--from", "8", "--to", "16", "--seeds", "2", "--plot", str(tmp_path / "plot.svg")]
    assert cli.main(["scale", *common, *lines, *sizes, "--html", str(page)]) == 0
    assert len(json.loads(out.read_text())["rows"]) == 2


def test_fit_refuses_a_recipe_by_its_name(capsys):
    assert cli.main(["fit", "--model", DSV3, "--hw", "gb200:256", "--recipe", "fp16"]) == 2
    assert "--recipe fp16: must be one of bf16" in capsys.readouterr().err


def test_fit_says_which_layout_it_speaks_of(capsys):
    assert cli.main(["fit", "--model", DSV3_4, "--hw", "b200:8", "--layout", "ep8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines if line.startswith("layout")] == ["layout ep8"]
    assert sum(line.startswith("fits") for line in lines) == 1


def test_memory_bound_layouts_name_the_next_knob():
    result = run(hw="h100:64", layout_text="ep64", batch=64, options="recompute=full")
    assert not result["fits"] and result["binding_constraint"] == "memory" and result["next_knob"]


def test_offload_needs_its_link():
    words = {"hw": "gb300:128", "layout_text": "fsdp16,ep8", "batch": 768}
    slow = run(**words, options="offload=expert_hidden,recompute=norm", what_if="host=0.02x")
    fast = run(**words, options="offload=expert_hidden,recompute=norm")
    assert fast["exposed"]["offload"] < slow["exposed"]["offload"]
    kept = run(**words, options="recompute=norm")
    assert fast["memory_gib_max_rank"] < kept["memory_gib_max_rank"]


def test_a_torus_is_no_switch():
    # 512 chips are 8 x 8 x 8. Gathers over all of them use all links; an exchange within 64 is one
    # layer of 8 x 8, whose bisection is narrower than its chips' ports.
    words = {"hw": "tpu_v5p:512", "layout_text": "fsdp,ep64", "batch": 512}
    options = "recompute=full,overlap=off"
    torus = run(**words, options=options)
    switch = run(**words, options=options, what_if="torus_axes=0")
    assert torus["exposed"]["ep"] > 2 * switch["exposed"]["ep"]
    whole = {"hw": "tpu_v5p:512", "layout_text": "fsdp", "batch": 512}
    torus = run(**whole, options=options)
    switch = run(**whole, options=options, what_if="torus_axes=0")
    assert torus["step_seconds"] == pytest.approx(switch["step_seconds"])


def test_muon_trades_memory_for_products():
    words = dict(model="kimi-k2", hw="gb300:256", recipe="mxfp8", layout_text="pp4,vp4,ep64",
                 batch=4096)  # fmt: skip
    adamw, muon = (
        simulate.simulate(
            scenario.make(**words, options=f"recompute=latent;optimizer={name}"),
            microbatch_limit=1,
        )
        for name in ("adamw", "muon")
    )
    assert muon["optimizer_seconds"] > 2 * adamw["optimizer_seconds"]
    states = [stage["optimizer"] for stage in muon["memory"]]
    assert states == pytest.approx([stage["optimizer"] * 8 / 12 for stage in adamw["memory"]])
    assert muon["memory_gib_max_rank"] < adamw["memory_gib_max_rank"]
    assert "optimizer=muon" in muon["layout"] and "optimizer" not in adamw["layout"]

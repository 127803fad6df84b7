# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The HTML report: what it says, that it is self-contained, and that no run state breaks it."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
import time
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest

import synthetic_run
from anabranch.cli import main
from anabranch.train import report
from anabranch.train.report import axis, chart, heat_map, quantized, repeat, run_log, units
from anabranch.train.report.summary import summarise

_VOID = {"meta", "img", "br", "path", "image"}


class _Checker(HTMLParser):
    """Collects every reference and text of a page, and checks that its tags are balanced."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.references += [value for name, value in attributes if name in ("src", "href")]
        assert not any(name.startswith("on") for name, _ in attributes)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in _VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).replace("\u202f", " ").split())


def _check(path) -> _Checker:
    page = path.read_text("utf-8")
    checker = _Checker()
    checker.feed(page)
    assert checker.open == []
    assert all(reference.startswith("data:image/png;base64,") for reference in checker.references)
    assert checker.tags.count("script") == 1
    assert "nan" not in re.sub(r"base64,[^\"]*", "", page).lower().replace("finance", "")
    assert path.stat().st_size < 2_000_000
    return checker


def _write(folder, lines, config=None, tail=""):
    run = synthetic_run.write_run(folder, lines, config)
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(tail)
    return report.write(run)


def test_finished_run_shows_everything(tmp_path):
    began = time.perf_counter()
    path = _write(tmp_path, synthetic_run.finished_run())
    assert time.perf_counter() - began < 5
    assert path == tmp_path / "report.html"
    text = _check(path).text
    for words in (
        "finished", "bits / byte, held out", "unigram byte model", "bigram byte model", "4.713",
        "3.582", "31.2 M", "7.10 M active", "Dropped tokens 0", "Skipped steps 0", "Peak memory",
        "of 0.412 TFLOP/s", "Loss", "nats / token", "Learning rate", "Gradient norm",
        "MoE layer 5 of 5", "MaxVio per layer", "Dead experts per layer", "Throughput", "Memory",
        "Time split", "Generated text", "anabranch train default", "hidden_size", "avx512_bf16",
        "AMD EPYC 9R14", "trained for 2 min 09 s",
    ):  # fmt: skip
        assert words in text, words


def test_page_needs_no_network(tmp_path):
    page = _write(tmp_path, synthetic_run.finished_run()).read_text("utf-8")
    page = re.sub(r"base64,[^\"]*", "", page)
    assert not re.search(r"https?:|//[a-z]|@import|url\(|<link|<iframe|fetch\(", page)
    assert "prefers-color-scheme: dark" in page and "@media print" in page


def test_text_of_the_run_is_escaped(tmp_path):
    evil = "</pre><script>alert('x')</script><img src=x onerror=alert(1)>&lt;\"'\x00\x1b[31m\ud800"
    config = {"name": evil, "description": evil, "model": {evil: evil}, "train": {"steps": 2}}
    started = {**synthetic_run.STARTED, "machine": {"cpu": evil, evil: evil}, "isa": evil}
    record = synthetic_run.step_record(1)
    record["time_split"] = {evil: 1.0}
    lines = [
        started,
        record,
        {"event": "sample", "step": 1, "prompt": evil, "text": evil},
        {"event": "skipped", "step": 1, "first_non_finite": evil},
    ]
    path = _write(tmp_path / "run", lines, config)
    checker = _check(path)
    assert "<script>alert('x')</script>" in checker.text
    page = path.read_text("utf-8")
    assert "<script>alert" not in page and "<img src=x" not in page
    assert "\x00" not in page and "\x1b" not in page


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_steps(tmp_path, count):
    lines = [synthetic_run.step_record(step) for step in range(1, count + 1)]
    text = _check(_write(tmp_path, [synthetic_run.STARTED, *lines])).text
    assert "unfinished" in text
    assert ("No step has been logged yet" in text) == (count == 0)


def test_folder_without_files_or_with_empty_ones(tmp_path):
    assert "unfinished" in _check(report.write(tmp_path)).text
    (tmp_path / "config.json").write_text("")
    (tmp_path / "metrics.jsonl").write_text("")
    assert "config.json is missing or unreadable" in _check(report.write(tmp_path)).text


def test_killed_run_with_a_truncated_line(tmp_path):
    lines = synthetic_run.finished_run()[:40]
    path = _write(tmp_path, lines, tail='{"step": 500, "loss": 1.23, "expert_lo')
    text = _check(path).text
    assert "1 unreadable line of metrics.jsonl left out" in text
    assert "unfinished, at step 180 of 600" in text


def test_quantisation_by_layer_and_operand(tmp_path):
    lines = [synthetic_run.STARTED, *(synthetic_run.quantized_record(step) for step in (5, 10))]
    lines.append(synthetic_run.step_record(15))  # the last line may lack it
    found = quantized.tables(lines[2])
    table = found["flushed_share"]
    assert table.operands == [*synthetic_run.OPERANDS] and table.products[0] == "attention.q_a"
    assert np.isnan(table.values[:, :, 0]).all()  # the first layer is bf16
    np.testing.assert_allclose(table.values[0, 2], [np.nan, 1e-4, 1e-3, 1e-2], rtol=1e-9)
    checker = _check(_write(tmp_path, lines))
    assert "Signal to noise, step 10" in checker.text and "Flushed to zero, step 10" in checker.text
    assert "moe.w_down" in checker.text and "wgrad_dy" in checker.text
    assert "1.00 %" in checker.text  # the worst layer's share
    strips = 3 * 8 * 6 * 2
    assert checker.tags.count("img") >= strips
    page = (tmp_path / "report.html").read_text("utf-8")
    assert 'title="layer 1: 0.01 %; layer 2: 0.10 %; layer 3: 1.00 %"' in page.replace(
        "\u202f", " "
    )


@pytest.mark.parametrize("value", [None, "text", [], [[]], {}, {"a": 1}, [1, "x"], -1, 1e308, True])
def test_quantisation_of_a_wrong_kind(tmp_path, value):
    lines = [synthetic_run.quantized_record(step) for step in range(1, 8)]
    lines[0]["quantized"] = value
    lines[1]["quantized"]["operands"] = value
    lines[2]["quantized"]["layers"] = value
    lines[3]["quantized"]["layers"][0] = value
    lines[4]["quantized"]["layers"][0]["layer"] = value
    lines[5]["quantized"]["layers"][0]["products"] = value
    lines[6]["quantized"]["layers"][0]["products"][0]["sqnr_db"] = value
    for count in range(1, 8):
        _check(_write(tmp_path, lines[:count]))


def test_resumed_run_shows_each_step_once(tmp_path):
    first = [record for record in synthetic_run.finished_run() if record.get("step", 0) <= 200]
    again = [synthetic_run.step_record(step) for step in range(155, 300, 5)]
    run = synthetic_run.write_run(tmp_path, [*first, synthetic_run.STARTED, *again])
    log = run_log.load(run)
    steps = log.series("step")
    assert (np.diff(steps) > 0).all() and steps[-1] == 295
    assert log.resumed_at == [155]
    assert [record["step"] for record in log.evals] == [100]
    assert "resumed" in _check(report.write(run)).text


def test_finished_run_that_goes_on_is_unfinished(tmp_path):
    lines = synthetic_run.finished_run(steps=20)
    run = synthetic_run.write_run(tmp_path, [*lines, synthetic_run.step_record(25)])
    assert summarise(run_log.load(run)).status == "unfinished"


def test_non_finite_values(tmp_path):
    lines = synthetic_run.finished_run(steps=100)
    lines[3].update(loss=None, bits_per_byte=math.nan, grad_norm=math.inf, skipped_steps=1)
    lines[4].update(loss=math.nan, bits_per_byte=None, grad_norm=-math.inf, mfu=10**400)
    lines.insert(4, {"event": "skipped", "step": 15, "first_non_finite": "gradient of w_gate"})
    text = _check(_write(tmp_path, lines)).text
    assert "first non-finite: gradient of w_gate" in text
    assert "Skipped steps 1" in text and "skipped step" in text


def test_every_value_non_finite(tmp_path):
    lines = [synthetic_run.step_record(step) for step in range(1, 6)]
    for line in lines:
        for key, value in line.items():
            if isinstance(value, float):
                line[key] = math.nan
    _check(_write(tmp_path, lines))


@pytest.mark.parametrize(
    "value", [None, "text", [], [[]], {}, {"a": 1}, [1, "x"], [[1], [1, 2]], -1, 0, 1e308, True]
)
def test_values_of_a_wrong_kind(tmp_path, value):
    lines = [synthetic_run.STARTED]
    for key in synthetic_run.step_record(1):
        if key != "step":
            lines.append({**synthetic_run.step_record(len(lines)), key: value})
    lines.append({"event": "eval", "step": value, "held_out_bits_per_byte": value})
    lines.append({"event": "sample", "step": value, "prompt": value, "text": value})
    lines.append({"event": value, "step": value})
    lines += [{**synthetic_run.STARTED, key: value} for key in synthetic_run.STARTED]
    inner = {"unigram": value, "bigram": value, "total": value, "active": value, "cpu": value}
    lines += [{"event": "started", "baselines": inner, "parameters": inner, "machine": inner}]
    lines.append({"event": "finished", "seconds": value, "step": value})
    _check(_write(tmp_path, lines, {"name": value, "model": value, "train": {"steps": value}}))


def test_lines_that_are_no_records(tmp_path):
    tail = '[1, 2]\n3\n"text"\nnull\n\n\x00\x00\n' + "[" * 100_000 + "\n"
    text = _check(_write(tmp_path, synthetic_run.finished_run(steps=20), tail=tail)).text
    assert "5 unreadable lines" in text


def test_long_runs_of_large_models_stay_small(tmp_path):
    template = synthetic_run.step_record(1, layers=60, experts=256)
    lines = [{**template, "step": step, "tokens": step * 100} for step in range(1, 101)]
    lines += [
        {**synthetic_run.step_record(step), "expert_load": None, "max_violation": [0.1] * 60}
        for step in range(101, 5000, 2)
    ]
    began = time.perf_counter()
    path = _write(tmp_path, lines)
    assert time.perf_counter() - began < 5
    assert "MoE layer 60 of 60" in _check(path).text


def test_rewriting_changes_nothing(tmp_path):
    first = _write(tmp_path, synthetic_run.finished_run(steps=50)).read_bytes()
    assert report.write(tmp_path).read_bytes() == first
    assert not list(tmp_path.glob("*.tmp"))


def test_load_is_binned_relative_to_the_mean():
    steps = np.arange(10.0, 90.0, 10.0)
    loads = np.ones((8, 1, 4))
    loads[4:, 0] = [0, 1, 2, 5]
    relative, steps_axis = heat_map.relative_load(steps, loads, columns=4, rows=4)
    expected = [[1, 1, 0, 0], [1, 1, 0.5, 0.5], [1, 1, 1, 1], [1, 1, 2.5, 2.5]]
    np.testing.assert_allclose(relative[0], expected)
    assert (steps_axis.low, steps_axis.high) == (5, 85)
    fewer, _ = heat_map.relative_load(steps, loads, columns=4, rows=2)
    np.testing.assert_allclose(fewer[0][:, 3], [0.25, 1.75])


def test_levels_are_even_in_ratio_around_the_mean():
    assert heat_map.levels(np.array([0, 1e-3, 0.25, 0.5, 1, 2, 4, 99])).tolist() == [
        0, 1, 1, 5, 8, 11, 15, 15,
    ]  # fmt: skip


def test_png_holds_the_levels():
    numbers = np.array([[0, 1, 15], [8, 3, 2]], np.uint8)
    colours = heat_map.palette(("#000000", "#808080", "#ffffff", "#ff0000"))
    assert len(colours) == 16
    assert colours[0] == (255, 0, 0) and colours[1] == (0, 0, 0) and colours[15] == (255, 255, 255)
    picture = heat_map.png(numbers, colours)
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, kind = struct.unpack(">IIBB", picture[16:26])
    assert (width, height, depth, kind) == (3, 2, 4, 3)
    start = picture.index(b"IDAT")
    (length,) = struct.unpack(">I", picture[start - 4 : start])
    rows = zlib.decompress(picture[start + 4 : start + 4 + length])
    assert rows == bytes([0, 0x01, 0xF0, 0, 0x83, 0x20])


def test_heat_map_pictures_are_in_the_page(tmp_path):
    checker = _check(_write(tmp_path, synthetic_run.finished_run(steps=50)))
    pictures = [base64.b64decode(r.split(",", 1)[1]) for r in checker.references]
    assert len(pictures) == 2 * 5 + 2  # light and dark: five layers and the scale
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)


def test_thinning_keeps_mean_and_range():
    x = np.arange(1000.0)
    y = np.where(np.arange(1000) % 2 == 0, 1.0, 3.0)
    y[:4] = np.nan
    thin_x, thin_y, low, high = chart.thin(x, y, limit=250)
    assert len(thin_x) == 250
    assert np.isnan(thin_y[0]) and (thin_y[1:] == 2).all()
    assert (low[1:] == 1).all() and (high[1:] == 3).all()


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 1e-9), (-3, 7), (1e6, 1.0001e6), (0, 612), (0.1, 0.11)]
)
def test_ticks_lie_inside_and_are_labelled_truly(low, high):
    ticks = axis.Axis(low, high).ticks()
    assert 2 <= len(ticks) <= 7
    assert all(-1e-6 <= place <= 1 + 1e-6 for place, _ in ticks)
    if high < 1000:
        for place, label in ticks:
            value = low + place * (high - low)
            assert math.isclose(float(label.replace(",", "")), value, abs_tol=1e-6 * high)


@pytest.mark.parametrize("high", [2.0, 30.0, 1e4, 1e9])
def test_log_ticks(high):
    ticks = axis.Axis(1.0, high, log=True).ticks()
    assert 2 <= len(ticks) <= 8
    assert all(-0.01 <= place <= 1.01 for place, _ in ticks)


def test_numbers_as_people_read_them():
    plain = [units.scaled(v).replace("\u202f", " ") for v in (0, 12, 999, 8192, 999_999, 31.2e6)]
    assert plain == ["0", "12", "999", "8.19 k", "1.00 M", "31.2 M"]
    assert units.scaled(math.nan) == units.fixed(math.inf) == units.percent(math.nan) == "–"
    ticks = [label.replace("\u202f", " ") for label in units.tick_labels([0, 2500, 5000, 10_000])]
    assert ticks == ["0", "2.5 k", "5.0 k", "10.0 k"]
    times = [units.duration(v).replace("\u202f", " ") for v in (4.2, 59.6, 185, 7620)]
    assert times == ["4.2 s", "1 min 00 s", "3 min 05 s", "2 h 07 min"]


def test_repeat_command_names_what_differs_from_the_recipe(tmp_path):
    from anabranch import recipes

    recipe = recipes.override(recipes.get("smoke"), ["train.seed=7", "data.path=/tmp/a b"])
    config = json.loads(recipes.to_json(recipe))
    run = synthetic_run.write_run(tmp_path, [{**synthetic_run.STARTED, "total_steps": 9}], config)
    command = repeat.command(run_log.load(run), "smoke")
    assert command.startswith("anabranch train smoke ") and command.endswith(" --steps 9")
    assert "--set train.seed=7" in command and "--set 'data.path=/tmp/a b'" in command
    assert command.count("--set") == 2


def test_command_line_writes_the_report(tmp_path, capsys):
    synthetic_run.write_run(tmp_path, synthetic_run.finished_run(steps=20))
    assert main(["report", str(tmp_path), "--json", str(tmp_path / "out.json")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert json.loads((tmp_path / "out.json").read_text())["report"].endswith("report.html")


def test_command_line_refuses_what_is_no_run(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert main(["report", str(tmp_path / "missing")]) == 2
    assert "is not a run folder" in capsys.readouterr().err

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
import json

import pytest

from anabranch import cli
from anabranch.errors import UsageError
from anabranch.planner import calibration, calibration_fit, calibration_rows
from anabranch.planner.calibration import Fit

HEADER = ",".join(calibration_rows.COLUMNS)
QWEN = "a,qwen3-30b-a3b,h100,16,bf16,ep16,1024,1,4096,,,244.0,24.71,62.17"


def run(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_published_rows_have_sources_and_the_hold_out_list_names_some_of_them():
    rows = calibration_rows.published()
    assert len(rows) >= 25 and all(row.source and row.stack for row in rows)
    assert calibration_rows.held_out() < {row.id for row in rows}


def test_no_shipped_fit_saw_a_held_out_row():
    fits, error = calibration.shipped()
    seen = {row for fit in fits for row in fit.rows}
    assert fits and not seen & calibration_rows.held_out()
    assert seen <= {row.id for row in calibration_rows.published()}
    assert error["rows"] == len(calibration_rows.held_out()) and 0 < error["mape"] <= error["max"]


def test_the_stated_error_is_that_of_the_held_out_rows():
    rows = [r for r in calibration_rows.published() if r.id in calibration_rows.held_out()]
    found = calibration_rows.summary([calibration_rows.score(row) for row in rows])
    stated = calibration.shipped()[1]
    # To the digits that matter in print: the simulator may move by rounding between compilers.
    assert found["mape"] == pytest.approx(stated["mape"], abs=1e-3)
    assert found["max"] == pytest.approx(stated["max"], abs=1e-3)
    assert not found["refused"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "missing column id"),
        (HEADER, "no rows"),
        (HEADER.replace("gbs", "gsb") + "\n" + QWEN, "unknown column 'gsb'; nearest: gbs"),
        (HEADER.replace(",gbs", "") + "\n" + QWEN, "missing column gbs"),
        (HEADER + "\n" + QWEN.replace(",16,", ",-16,"), "count=-16: must be a positive"),
        (HEADER + "\n" + QWEN.replace("24.71", "-1"), "step_seconds=-1: must be a positive"),
        (HEADER + "\n" + QWEN.replace("24.71", "soon"), "step_seconds=soon"),
        (HEADER + "\n" + QWEN.replace("24.71", "nan"), "step_seconds=nan"),
        (HEADER + "\n" + QWEN.rsplit(",", 1)[0], "not as many values"),
        (HEADER + "\n" + QWEN + ",extra", "not as many values"),
        (HEADER + "\n" + QWEN + "\n" + QWEN, "line 3: id=a is there twice"),
        (HEADER + "\na,qwen3-30b-a3b,h100,16,bf16,ep16,1024,1,4096,,,,,", "nothing measured"),
        (HEADER + "\n" + QWEN.replace("qwen3-30b-a3b", ""), "model is blank"),
    ],
)
def test_a_bad_file_is_one_line(capsys, tmp_path, text, said):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    code, out, err = run(capsys, "calib", "--rows", path)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1, err


def test_a_missing_file_is_one_line(capsys, tmp_path):
    code, _, err = run(capsys, "calib", "--rows", tmp_path / "none.csv")
    assert code == 2 and "none.csv" in err and err.count("\n") == 1


def test_rows_that_cannot_be_simulated_are_printed_as_misses(capsys, tmp_path):
    path = tmp_path / "rows.csv"
    other = QWEN.replace("a,qwen3", "b,qwen3").replace("h100", "h1000")
    odd = QWEN.replace("a,qwen3", "c,qwen3").replace("ep16", "ep17")
    blank = QWEN.replace("a,qwen3", "d,qwen3").replace(",1024,", ",,")
    path.write_text("\n".join([HEADER, QWEN, other, odd, blank]))
    code, out, _ = run(capsys, "calib", "--rows", path, "--json", tmp_path / "out.json")
    facts = json.loads((tmp_path / "out.json").read_text())
    assert code == 0 and facts["refused"] == ["b", "c", "d"] and facts["compared"] == 1
    assert out.count("MISS: not simulated") == 3 and "h1000" in out
    assert facts["mape"] == facts["max"] == abs(facts["scores"][0]["step_error"])


def test_hold_out_leaves_out_what_was_fitted(capsys, tmp_path):
    code, out, _ = run(capsys, "calib", "--hold-out", "--json", tmp_path / "out.json")
    facts = json.loads((tmp_path / "out.json").read_text())
    assert code == 0 and ", fitted" not in out
    assert {s["id"] for s in facts["scores"]} == calibration_rows.held_out()
    assert not any(s["fitted"] for s in facts["scores"])


def row(**changes):
    values = dict(zip(calibration_rows.COLUMNS, QWEN.split(","), strict=True)) | changes
    return calibration_rows.parse(
        ",".join(values) + "\n" + ",".join(values.values()) + "\n", "test"
    )[0]


def test_step_seconds_come_from_what_was_measured():
    assert calibration_rows.measured_step_seconds(row()) == 24.71
    tokens = row(step_seconds="", tflops_per_gpu="", tokens_per_second_per_gpu="10000")
    expected = 1024 * 4096 / 16 / 10000
    assert calibration_rows.measured_step_seconds(tokens) == pytest.approx(expected)
    flops = row(step_seconds="")
    # The published pair of this row: 24.71 s and 244.0 TFLOP/s; our FLOPs of a token are within 0.5 %.
    assert calibration_rows.measured_step_seconds(flops) == pytest.approx(24.71, rel=5e-3)
    memory = row(step_seconds="", tflops_per_gpu="")
    assert calibration_rows.measured_step_seconds(memory) is None


def test_multi_token_prediction_is_read_off_the_flops():
    model = {"model": "deepseek-v3-671b", "hw": "gb200", "step_seconds": ""}
    with_mtp = row(**model, tokens_per_second_per_gpu="4912", tflops_per_gpu="1276")
    without = row(**model, tokens_per_second_per_gpu="3139", tflops_per_gpu="782")
    assert "mtp1" in calibration_rows.options_of(with_mtp)
    assert "mtp1" not in calibration_rows.options_of(without)


FITS = (
    Fit("gb200", "megatron-25.11", {}, ("1",)),
    Fit("gb200", "megatron-26.08", {}, ("2",)),
    Fit("gb300", "megatron-26.06", {}, ("3",)),
    Fit("h100", "other-26.01", {}, ("4",)),
)


@pytest.mark.parametrize(
    ("hardware", "stack", "chosen"),
    [
        ("gb200", "megatron-25.11", "1"),
        ("gb200", "megatron-26.01", "1"),
        ("gb200", "megatron-26.06", "2"),
        ("gb200", "", "2"),
        ("b300", "megatron-26.06", "3"),
        ("gb200", "maxtext-26.06", None),
        ("h100", "", "4"),
        ("mi300x", "", None),
        ("nowhere", "", None),
    ],
)
def test_a_stack_gets_the_nearest_fit_of_its_kind(hardware, stack, chosen):
    fit = calibration.choose(FITS, hardware, stack)
    assert (fit and fit.rows[0]) == chosen


def test_an_accelerator_without_fit_or_stack_gets_its_architectures_mean():
    fits = (
        Fit("gb200", "megatron-25.11", {"x": 0.5}, ("1",)),
        Fit("gb300", "megatron-26.08", {"x": 2.0}, ("2",)),
        Fit("gb300", "other-26.08", {"x": 9.0}, ("3",)),
    )
    mean = calibration.choose(fits, "b200", "")
    assert mean is not None and mean.factors["x"] == pytest.approx(1.0) and mean.rows == ("1", "2")
    assert mean.hardware == "gb200+gb300"


def test_without_a_fit_the_kernel_tables_stand_and_the_error_is_still_stated():
    known = calibration.load("h100", "unheard-of-26.01")
    assert known.parameters == {} and known.id == "h100/kernel-tables"
    assert known.held_out_mape is not None and known.held_out_rows > 0


def test_a_fit_moves_towards_its_row_and_never_takes_held_out_ones():
    held_out = [r for r in calibration_rows.published() if r.id == "14-on"]
    assert calibration_fit.fit(held_out) == []
    own = row(step_seconds="22", tflops_per_gpu="")
    fit = calibration_fit.fit([own])[0]
    before = calibration_rows.score(own, {}).step_error
    after = calibration_rows.score(own, calibration.parameters("h100", fit.factors)).step_error
    assert abs(after) < 0.5 * abs(before) and fit.rows == ("a",)
    for _, (names, _, low, high) in calibration_fit.FACTORS.items():
        assert all(low <= fit.factors[name] <= high for name in names)


def test_unknown_columns_are_usage_errors():
    with pytest.raises(UsageError, match="unknown column"):
        calibration_rows.parse(HEADER + ",speed\n" + QWEN + ",1\n", "x")

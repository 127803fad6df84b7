# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What scripts/checkperf calls a regression, on fabricated times, and its usage errors."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("checkperf", ROOT / "scripts" / "checkperf.py")
checkperf = importlib.util.module_from_spec(spec)
spec.loader.exec_module(checkperf)


def verdict(base, tree, threshold=0.05):
    (row,) = checkperf.compare({"row": base}, {"row": tree}, threshold)
    return row["verdict"]


def test_a_steady_slowdown_beyond_the_threshold_is_slower():
    assert verdict([1.0] * 7, [1.06] * 7) == "slower"
    assert verdict([1.0] * 7, [1.04] * 7) == "same"
    assert verdict([1.0] * 7, [1.06] * 7, threshold=0.07) == "same"


def test_a_steady_gain_is_faster():
    assert verdict([1.0] * 7, [0.90] * 7) == "faster"


def test_noise_excuses_what_it_can_explain():
    ratios = [0.7, 1.5, 0.9, 1.12, 1.3, 0.8, 1.4]  # median 1.12, quartiles far apart
    assert verdict([1.0] * 7, ratios) == "same"
    assert verdict([1.0] * 7, [1.5, 1.52, 1.48, 1.51, 1.49, 1.5, 1.5]) == "slower"


def test_rounds_are_compared_with_each_other():
    # The machine drifts by a factor of three; both sides see it, and the tree is always 10 % slower.
    base = [1.0, 1.5, 2.0, 3.0, 2.5, 1.2, 1.1]
    assert verdict(base, [1.1 * seconds for seconds in base]) == "slower"


def test_one_outlier_is_no_regression():
    assert verdict([1.0] * 7, [1.0, 1.0, 1.01, 9.0, 1.0, 0.99, 1.0]) == "same"


def test_few_rounds_take_the_whole_range_as_noise():
    (row,) = checkperf.compare({"row": [1.0, 1.0]}, {"row": [1.0, 1.3]}, 0.05)
    assert row["noise"] == pytest.approx(0.3)
    assert row["verdict"] == "same"


def test_rows_of_one_side_are_named_and_judged_neither_way():
    rows = checkperf.compare({"old": [1.0]}, {"fresh": [2.0]}, 0.05)
    assert [(row["name"], row["verdict"]) for row in rows] == [("old", "gone"), ("fresh", "new")]
    assert "old" in checkperf.table(rows)


def test_the_table_names_every_row_with_its_change():
    text = checkperf.table(checkperf.compare({"a/b": [0.5] * 4}, {"a/b": [0.6] * 4}, 0.05))
    assert "a/b" in text and "+20.0%" in text and "slower" in text and "500" in text


def test_google_benchmark_times_become_seconds_without_aggregates():
    rows = [
        {"name": "a", "run_type": "iteration", "real_time": 2.0, "time_unit": "ms"},
        {"name": "a_mean", "run_type": "aggregate", "real_time": 3.0, "time_unit": "ms"},
        {"name": "b", "error_occurred": True, "real_time": 0.0, "time_unit": "ns"},
    ]
    assert checkperf.google_seconds({"benchmarks": rows}) == {"a": pytest.approx(2e-3)}


@pytest.mark.parametrize(
    "arguments",
    [["no-such-commit"], [], ["HEAD", "--rounds", "0"], ["HEAD", "--no-cpp"], ["HEAD", "--what"]],
)
def test_usage_errors_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        checkperf.main(arguments)
    assert error.value.code == 2
    assert "usage: checkperf" in capsys.readouterr().err


def test_a_failed_command_is_named():
    with pytest.raises(checkperf.Failure, match="exit 3 from: sh -c"):
        checkperf.run(["sh", "-c", "exit 3"])

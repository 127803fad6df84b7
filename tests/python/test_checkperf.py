# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What scripts/checkperf calls a regression, on fabricated times, and its usage errors."""

import argparse
import importlib.util
import json
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
    rows[2]["error_message"] = "wrong result"
    assert checkperf.google_errors({"benchmarks": rows}) == ["b: wrong result"]


@pytest.mark.parametrize(
    "arguments",
    [["no-such-commit"], [], ["HEAD", "--rounds", "1"], ["HEAD", "--no-cpp"], ["HEAD", "--what"]],
)
def test_usage_errors_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        checkperf.main(arguments)
    assert error.value.code == 2
    assert "usage: checkperf" in capsys.readouterr().err


def test_a_failed_command_is_named():
    with pytest.raises(checkperf.Failure, match="exit 3 from: sh -c"):
        checkperf.run(["sh", "-c", "exit 3"])


def arguments(*names, suite=()):
    return argparse.Namespace(bench=list(names), suite=list(suite), no_cpp=False)


def trees_with(folder, *sides):
    trees = [folder / str(index) for index in range(len(sides))]
    for tree, names in zip(trees, sides, strict=True):
        for name in names:
            (tree / "src" / "ops" / name).mkdir(parents=True)
            (tree / "src" / "ops" / name / f"{name}_bench.cc").touch()
    return trees


def test_programs_of_one_side_are_named_and_the_others_compared(tmp_path, capsys):
    trees = trees_with(tmp_path, ["adamw", "gone"], ["adamw", "linear", "linear_cross_entropy"])
    assert checkperf.programs(trees, arguments(suite=["step"])) == ["adamw_bench", "suite:step"]
    said = capsys.readouterr().err
    assert "gone_bench is in the base alone" in said and "linear_bench is in the tree alone" in said
    with pytest.raises(checkperf.Failure, match="no benchmark is on both sides"):
        checkperf.programs(trees, arguments("linear"))
    with pytest.raises(checkperf.Failure, match=r"no benchmark 'line'; there are adamw, gone, lin"):
        checkperf.programs(trees, arguments("line"))


def test_the_slower_rows_are_named_and_counted(capsys):
    rows = checkperf.compare({"a": [1.0] * 4, "b": [1.0] * 4}, {"a": [1.2] * 4, "c": [1.0]}, 0.05)
    assert checkperf.verdict(rows) == 1
    said = capsys.readouterr().err
    assert "a is 20.0% slower" in said and "1 of 1 rows are slower" in said
    assert checkperf.verdict(rows[1:]) == 0


def test_a_base_is_unpacked_once_and_leaves_the_repository_alone(tmp_path, monkeypatch):
    repository, base = tmp_path / "repository", tmp_path / "builds" / "base"
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    checkperf.run(["git", "init", "--quiet", str(repository)])
    (repository / "src").mkdir()
    (repository / "src" / "a.cc").write_text("old")
    checkperf.run([*git, "add", "src"])
    checkperf.run([*git, "commit", "--quiet", "--message", "one"])
    monkeypatch.setattr(checkperf, "ROOT", repository)
    clean = checkperf.describe_tree()
    (repository / "src" / "a.cc").write_text("new")
    checkperf.unpack("HEAD", base)
    checkperf.unpack("no commit is looked up again", base)
    assert (base / "src" / "a.cc").read_text() == "old"
    assert [path.name for path in base.parent.iterdir()] == ["base"]
    assert checkperf.describe_tree() == f"{clean} and 1 changed files"
    with pytest.raises(checkperf.Failure, match="git"):
        checkperf.unpack("no-such-commit", tmp_path / "other")


# A program that claims a time, in place of one that takes it: what is tested is everything round it.
PROGRAM = r"""
#include <cstdio>
#include <cstring>
int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    if (std::strncmp(arguments[i], "--benchmark_out=", 16)) continue;
    std::FILE* out = std::fopen(arguments[i] + 16, "w");
    std::fputs(R"(DOCUMENT)", out);
    std::fclose(out);
  }
}
"""
PROJECT = """cmake_minimum_required(VERSION 3.22)
project(small LANGUAGES CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
file(GLOB_RECURSE programs src/*_bench.cc)
foreach(program ${programs})
  get_filename_component(name ${program} NAME_WE)
  add_executable(${name} ${program})
endforeach()
"""


def write_program(repository, name, time, failed=False):
    source = repository / "src" / "ops" / name / f"{name}_bench.cc"
    source.parent.mkdir(parents=True, exist_ok=True)
    row = {"name": "row", "real_time": time, "time_unit": "ms", "error_occurred": failed}
    source.write_text(PROGRAM.replace("DOCUMENT", json.dumps({"benchmarks": [row]})))


def test_a_whole_run_names_the_slower_row_and_exits_with_1(tmp_path, monkeypatch, capfd):
    repository, builds = tmp_path / "repository", tmp_path / "builds"
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b"]
    checkperf.run(["git", "init", "--quiet", str(repository)])
    (repository / "CMakeLists.txt").write_text(PROJECT)
    write_program(repository, "steady", 100)
    write_program(repository, "slow", 100)
    checkperf.run([*git, "add", "."])
    checkperf.run([*git, "commit", "--quiet", "--message", "one"])
    monkeypatch.setattr(checkperf, "ROOT", repository)
    command = ["HEAD", "--rounds", "4", "--builds", str(builds)]
    write_program(repository, "slow", 107)
    write_program(repository, "added", 100)
    assert checkperf.main(command) == 1
    said = capfd.readouterr().err
    assert "and 2 changed files" in said and "added_bench is in the tree alone" in said
    assert "slow_bench: row is 7.0% slower" in said and "1 of 2 rows are slower" in said
    assert checkperf.main([*command, "--bench", "steady"]) == 0  # builds are there already
    write_program(repository, "steady", 100, failed=True)
    assert checkperf.main([*command, "--bench", "steady"]) == 1
    assert "steady_bench: row: failed" in capfd.readouterr().err
    trees = checkperf.run([*git, "worktree", "list"], capture_output=True, text=True)
    assert len(trees.stdout.splitlines()) == 1

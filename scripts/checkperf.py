# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Is the tree slower than a base commit? Builds both and runs their benchmarks in turn on this machine.

Every round runs each benchmark program of the base and of the tree one right after the other, in alternating
order, so that a slow minute of the machine hits both. A row fails when the tree's time exceeds the base's by more
than the threshold and the measured noise together. Exit 0: none does; 1: one does, a row of the tree fails, or a
build does; 2: usage. The tree is what lies in the folder, uncommitted changes included; the base is unpacked beside
it and the repository is left as it was. Programs that only one side has are named and not judged.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIDES = ("base", "tree")
BUSY_CORES = 0.05  # used by others: a neighbour on one core halves what two cores do
# Two standard errors of a median, from the quartiles of n values: 2 * 1.253 sigma / sqrt(n), and sigma is the
# distance of the quartiles divided by 1.349 where values scatter normally.
NOISE_FACTOR = 2 * 1.253 / 1.349


class Failure(Exception):
    """Something that had to run did not."""


def compare(base: dict[str, list[float]], tree: dict[str, list[float]], threshold: float):
    """Judges every row from its seconds (or any unit), one value a round, in the same order on both sides.

    Returns a dict a row: `name`, medians `base` and `tree`, `change` (median of the rounds' ratios - 1), `noise`
    (two standard errors of that), and `verdict`: "slower" when change - noise > threshold, "faster" when
    change + noise < -threshold, "new" or "gone" when one side lacks the row, else "same".
    """
    rows = []
    for name in [*base, *(name for name in tree if name not in base)]:
        old, new = base.get(name, []), tree.get(name, [])
        row = {
            "name": name,
            "base": _median(old),
            "tree": _median(new),
            "change": None,
            "noise": None,
        }
        if not old or not new:
            row["verdict"] = "gone" if old else "new"
        else:
            ratios = [b / a for a, b in zip(old, new, strict=False)]
            change, noise = statistics.median(ratios) - 1, _noise(ratios)
            row |= {"change": change, "noise": noise}
            row["verdict"] = "same"
            if change - noise > threshold:
                row["verdict"] = "slower"
            elif change + noise < -threshold:
                row["verdict"] = "faster"
        rows.append(row)
    return rows


def _median(values):
    return statistics.median(values) if values else None


def _noise(ratios):
    if len(ratios) < 4:  # quartiles of so few are not to be had: the whole range
        return max(ratios) - min(ratios)
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return NOISE_FACTOR * (high - low) / len(ratios) ** 0.5


def table(rows) -> str:
    """The rows as text, times in milliseconds."""
    width = max([len(row["name"]) for row in rows] + [3])
    lines = [f"{'row':{width}} {'base ms':>10} {'tree ms':>10} {'change':>8} {'noise':>7}  verdict"]
    for row in rows:
        times = "".join(f" {_milliseconds(row[side]):>10}" for side in SIDES)
        change = "" if row["change"] is None else f"{row['change']:+.1%}"
        noise = "" if row["noise"] is None else f"{row['noise']:.1%}"
        lines.append(f"{row['name']:{width}}{times} {change:>8} {noise:>7}  {row['verdict']}")
    return "\n".join(lines)


def _milliseconds(seconds):
    return "" if seconds is None else f"{seconds * 1e3:.4g}"


def google_seconds(document) -> dict[str, float]:
    """Seconds of each row of Google Benchmark's JSON; aggregates and rows that failed are left out."""
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    return {
        row["name"]: row["real_time"] * units[row["time_unit"]]
        for row in document["benchmarks"]
        if row.get("run_type", "iteration") == "iteration" and not row.get("error_occurred")
    }


def google_errors(document) -> list[str]:
    """The rows of Google Benchmark's JSON that failed, with the reason."""
    return [
        f"{row['name']}: {row.get('error_message', 'failed')}"
        for row in document["benchmarks"]
        if row.get("error_occurred")
    ]


def suite_seconds(document) -> dict[str, float]:
    """Seconds of each row of `anabranch bench SUITE --json`."""
    return {row["name"]: row["seconds"] for row in document["rows"]}


def build(source: pathlib.Path, folder: pathlib.Path, args) -> None:
    """Compiles the C++ benchmarks of a source tree, and the engine when suites are asked for."""
    options = ["-DANABRANCH_BUILD_BENCH=ON", "-DANABRANCH_BUILD_TESTS=OFF"]
    targets = benchmarks(source, args)
    options.append(f"-DANABRANCH_BUILD_FFI={'ON' if args.suite else 'OFF'}")
    if args.suite:
        code = "import jax; print(jax.ffi.include_dir())"
        headers = run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
        options.append(f"-DANABRANCH_XLA_INCLUDE_DIR={headers}")
        targets.append("anabranch_ffi")
    if not targets:
        return
    quiet = {"stdout": subprocess.DEVNULL}
    release = "-DCMAKE_BUILD_TYPE=Release"
    run(["cmake", "-S", str(source), "-B", str(folder), release, *options], **quiet)
    command = ["cmake", "--build", str(folder), "-j", str(args.jobs), "--target", *targets]
    run(command, **quiet)


def run(command, **options):
    """Runs a command that must succeed."""
    outcome = subprocess.run(command, check=False, **options)
    if outcome.returncode:
        raise Failure(f"exit {outcome.returncode} from: {' '.join(map(str, command))}")
    return outcome


def benchmarks(source: pathlib.Path, args) -> list[str]:
    """The benchmark programs of a source tree that `--bench` leaves."""
    found = () if args.no_cpp else source.glob("src/**/*_bench.cc")
    return sorted(path.stem for path in found if not args.bench or program_of(path) in args.bench)


def program_of(path: pathlib.Path) -> str:
    """`adamw` for src/ops/adamw/adamw_bench.cc."""
    return path.stem.removesuffix("_bench")


def programs(trees, args) -> list[str]:
    """What both sides can run: benchmark programs by name, then suites as `suite:NAME`.

    Says which programs only one side has; Failure when nothing is left, or `--bench` names none of either side.
    """
    base, tree = (benchmarks(source, args) for source in trees)
    for name in args.bench:
        if f"{name}_bench" not in base + tree:
            every = sorted({program_of(p) for t in trees for p in t.glob("src/**/*_bench.cc")})
            raise Failure(f"no benchmark {name!r}; there are {', '.join(every)}")
    for names, others, side in ((base, tree, "base"), (tree, base, "tree")):
        for name in names:
            if name not in others:
                print(f"checkperf: {name} is in the {side} alone: not compared", file=sys.stderr)
    both = [name for name in base if name in tree] + [f"suite:{name}" for name in args.suite]
    if not both:
        raise Failure("nothing to compare: no benchmark is on both sides")
    return both


def measure(program: str, source: pathlib.Path, folder: pathlib.Path, args) -> dict[str, float]:
    """Runs one program once and returns the seconds of its rows, the program's name before each."""
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "out.json"
        if program.startswith("suite:"):
            name = program.removeprefix("suite:")
            engine = folder / "src" / "ffi" / "lib_anabranch.so"
            paths = {"PYTHONPATH": str(source / "python"), "ANABRANCH_LIBRARY": str(engine)}
            code = "import sys; from anabranch.cli import main; sys.exit(main())"
            command = [sys.executable, "-c", code, "bench", name, "--json", str(out)]
            run(command, env=os.environ | paths, cwd=scratch, stdout=subprocess.DEVNULL)
            seconds = suite_seconds(json.loads(out.read_text()))
        else:
            command = [str(folder / "bench" / program), f"--benchmark_out={out}"]
            command += ["--benchmark_out_format=json", f"--benchmark_min_time={args.min_time}"]
            command += [f"--benchmark_filter={args.filter}"] if args.filter else []
            run(command, cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            document = json.loads(out.read_text()) if out.stat().st_size else {"benchmarks": []}
            failed = google_errors(document)
            if failed and source == ROOT:  # the base may fail where the tree is mended
                raise Failure(f"{program}: {failed[0]}")
            seconds = google_seconds(document)
    return {f"{program}: {row}": value for row, value in seconds.items()}


def cpu_seconds() -> tuple[float, float]:
    """CPU seconds used by the whole machine, and by this process and the children it has waited for."""
    ticks = [int(t) for t in pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    total = sum(ticks[:8]) - ticks[3] - ticks[4]
    return total / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4])


def alternate(names, trees, folders, args):
    """Seconds of every row of both sides, one value a round; and the cores that others used meanwhile."""
    samples: list[dict[str, list[float]]] = [{}, {}]
    before, start = cpu_seconds(), time.perf_counter()
    for turn in range(args.rounds):
        for program in names:
            for side in (0, 1) if turn % 2 == 0 else (1, 0):
                taken = measure(program, trees[side], folders[side], args)
                for row, seconds in taken.items():
                    samples[side].setdefault(row, []).append(seconds)
        print(f"checkperf: round {turn + 1} of {args.rounds}", file=sys.stderr)
    after = cpu_seconds()
    others = (after[0] - before[0]) - (after[1] - before[1])
    return samples, max(0.0, others / (time.perf_counter() - start))


def parse(argv):
    parser = argparse.ArgumentParser(prog="checkperf", description=__doc__.splitlines()[0])
    parser.add_argument("base", metavar="BASE", help="commit to compare with")
    parser.add_argument(
        "--bench", action="append", default=[], metavar="NAME",
        help="only the program NAME_bench; may be repeated",
    )  # fmt: skip
    parser.add_argument("--filter", default="", metavar="REGEX", help="only rows that match")
    parser.add_argument("--rounds", type=int, default=7, help="values a row and side (7)")
    parser.add_argument("--min-time", type=float, default=0.2, help="seconds a value (0.2)")
    parser.add_argument("--threshold", type=float, default=0.05, help="what fails (0.05)")
    parser.add_argument(
        "--suite", action="append", default=[], help="also `anabranch bench SUITE` (needs jax)"
    )
    parser.add_argument("--no-cpp", action="store_true", help="suites alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parallel compilations")
    parser.add_argument("--builds", type=pathlib.Path, help="keep both builds in this folder")
    parser.add_argument("--json", type=pathlib.Path, help="write the rows here too")
    args = parser.parse_args(argv)
    command = ["git", "rev-parse", "--verify", "--quiet", f"{args.base}^{{commit}}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        parser.error(f"{args.base!r} is no commit of this repository")
    if args.rounds < 2:
        parser.error("--rounds must be at least 2: one says nothing of the noise")
    if args.threshold < 0 or args.min_time <= 0:
        parser.error("--min-time must be positive, --threshold not negative")
    if args.no_cpp and not args.suite:
        parser.error("--no-cpp leaves nothing to run without --suite")
    args.commit = found.stdout.strip()
    return args


def unpack(commit: str, folder: pathlib.Path) -> None:
    """Lays the files of a commit in a folder, unless an earlier call did."""
    if folder.exists():
        return
    archive = run(["git", "-C", str(ROOT), "archive", commit], capture_output=True).stdout
    # Under another name until it is whole: an interrupted call leaves no half of a tree.
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
        run(["tar", "-x", "-C", partial], input=archive)
        os.rename(partial, folder)
        os.mkdir(partial)  # for the context to remove


def describe_tree() -> str:
    """The tree's commit, and how many files differ from it."""
    git = ["git", "-C", str(ROOT)]
    head = run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    paths = ["--", "src", "include", "cmake", "CMakeLists.txt", "python"]
    status = run([*git, "status", "--porcelain", *paths], capture_output=True, text=True)
    changed = len(status.stdout.splitlines())
    return head.stdout.strip() + (f" and {changed} changed files" if changed else "")


def check(args, scratch: pathlib.Path) -> int:
    """Builds, measures and judges both sides; the exit status."""
    builds = (args.builds or scratch).resolve()
    # Named by the commit: a kept folder serves the same base again, and another base beside it.
    name = f"base-{args.commit[:12]}"
    trees, folders = [builds / name, ROOT], [builds / f"{name}-build", builds / "tree-build"]
    unpack(args.commit, trees[0])
    print(f"checkperf: base {args.commit[:12]}; tree {describe_tree()}", file=sys.stderr)
    names = programs(trees, args)
    for side, source, folder in zip(SIDES, trees, folders, strict=True):
        print(f"checkperf: building {side}", file=sys.stderr)
        build(source, folder, args)
    samples, busy = alternate(names, trees, folders, args)
    rows = compare(*samples, args.threshold)
    if not rows:
        raise Failure("no row to compare: see --bench, --filter and --suite")
    print(table(rows))
    if busy >= BUSY_CORES:
        print(f"note: others used {busy:.2f} cores meanwhile; the noise says how much that cost")
    if args.json:
        document = {"base": args.commit, "busy_neighbour_cores": busy, "rows": rows}
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    return verdict(rows)


def verdict(rows) -> int:
    """Names the rows that are slower, or says that none is; the exit status."""
    slower = [row for row in rows if row["verdict"] == "slower"]
    for row in slower:
        print(f"checkperf: {row['name']} is {row['change']:.1%} slower", file=sys.stderr)
    judged = sum(row["change"] is not None for row in rows)
    print(f"checkperf: {len(slower)} of {judged} rows are slower than the base", file=sys.stderr)
    return 1 if slower else 0


def main(argv=None) -> int:
    args = parse(argv)
    try:
        with tempfile.TemporaryDirectory(prefix="checkperf-") as scratch:
            return check(args, pathlib.Path(scratch))
    except Failure as failure:
        print(f"checkperf: {failure}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

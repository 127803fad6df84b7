# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Checks which folder may include or import which.

C++: base <- tile <- ops <- comm <- sched <- ffi; `sim` takes base, cost headers and
comm/transport.h alone, and only ffi takes sim; sibling operations meet through X.h and X_cost.h. Python: see
PYTHON_LAYERS. Tests and benchmarks may use every layer.
"""

import ast
import pathlib
import re
import subprocess
import sys

LAYERS = ["base", "tile", "ops", "comm", "sched", "ffi"]
PYTHON_LAYERS = "errors _register engine ops interop layers models data recipes train bench commands cli".split()
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
# A foreign header, and where alone it may be included.
FOREIGN = [
    (r"xla/", r"src/ffi/"),
    (r"mpi\.h$", r"src/comm/(\w+/)?mpi\w*\.\w+$"),
    (r"(cuda|nccl|cublas)\w*(/|\.h)", r".*\.cuh?$|src/comm/nccl|src/ffi/"),
    (r"gtest/|gmock/", r".*_test\.(cc|h)$|tests/"),
    (r"benchmark/", r".*_bench\.cc$|bench/"),
]


def cpp_faults(path: str, text: str):
    parts = path.split("/")
    free = re.search(r"_(test|bench)\.cc$", path) is not None
    for kind, target in INCLUDE.findall(text):
        for header, place in FOREIGN:
            if re.match(header, target) and not re.match(place, path):
                yield f"{path}: <{target}> belongs in {place}"
        if any(re.match(header, target) for header, _ in FOREIGN):
            continue
        if kind == "<" or free:
            continue
        to = target.split("/")
        if len(to) < 2:
            yield f'{path}: "{target}" must be written from src/'
        elif parts[0] == "include":
            if to[0] not in ("base", "ops") or to[-1] != parts[-1]:
                yield f'{path}: "{target}" is no contract of that name'
        elif parts[1] == "sim":
            if to[0] not in ("base", "sim") and not re.search(
                r"_cost\.h$|^comm/transport\.h$", target
            ):
                yield f'{path}: sim may not include "{target}"'
        elif parts[1] == "ffi" and to[0] == "sim":
            continue
        elif to[0] not in LAYERS or LAYERS.index(to[0]) > LAYERS.index(parts[1]):
            yield f'{path}: {parts[1]} may not include "{target}"'
        elif parts[1] == to[0] == "ops" and parts[2] != to[1] and not is_contract(to):
            yield f'{path}: sibling operations meet through X.h and X_cost.h, not "{target}"'


def is_contract(to: list[str]) -> bool:
    return to[-1] in (f"{to[-2]}.h", f"{to[-2]}_cost.h")


def python_faults(path: str, text: str):
    own = path.split("/")[2].removesuffix(".py")
    for node in ast.walk(ast.parse(text)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{a.name}" for a in node.names]
        for name in (f"{n}.".split(".") for n in names):
            if name[0] != "anabranch" or own not in PYTHON_LAYERS or name[1] not in PYTHON_LAYERS:
                continue
            if PYTHON_LAYERS.index(name[1]) > PYTHON_LAYERS.index(own):
                yield f"{path}:{node.lineno}: {own} may not import anabranch.{name[1]}"


def main() -> int:
    files = subprocess.check_output(["git", "ls-files"], text=True).split()
    faults = []
    for path in files:
        if re.match(r"(src|include)/.*\.(h|cc|cu|cuh|inc)$", path):
            faults += cpp_faults(path, pathlib.Path(path).read_text())
        elif re.match(r"python/anabranch/.*\.py$", path):
            faults += python_faults(path, pathlib.Path(path).read_text())
    if len([f for f in files if re.match(r"include/anabranch/.*\.h$", f)]) > 15:
        faults.append("include/anabranch: more than 15 public headers")
    print("\n".join(faults + [f"layers: {len(files)} files, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

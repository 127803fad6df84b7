# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Checks sizes of files, functions, parameter lists and folders; prints the total of core lines."""

import ast
import collections
import pathlib
import re
import subprocess
import sys

# File, folder or `file::function` -> why it may exceed its limit. At most 3 % of the files.
ONE_TILE = "the operands of one tile; a struct would be filled anew for every tile"
EXEMPT: dict[str, str] = {
    "src/tile/kernel_body.inc::ActivateGradTile": ONE_TILE,
    "src/tile/kernel_body.inc::ActivateGradAny": ONE_TILE,
    "src/tile/yardstick.cc::TimeTileProduct": ONE_TILE,
    "src/tile": "one file per instruction set and kind of epilogue, their tests beside them",
    "src/ffi": "one file per operation, as everywhere else in the tree",
    "python/anabranch/ops": "one file per operation, named as its header and its FFI target are",
    "tests/python": "one file per thing tested, all found by one name pattern",
}
CODE = re.compile(r"\.(h|cc|cu|cuh|inc|py|sh|cmake)$")
KERNEL = re.compile(r"src/tile/.*\.(cc|h|inc)$|src/ops/\w+/(x86_|cuda_)\w+\.(cc|cu|h)$")
TEST = re.compile(r"_test\.cc$|^tests/")
BINDING = re.compile(r"src/ffi/.*\.cc$|python/anabranch/ops/.*\.py$")
FOLDER_LIMIT, DEPTH_LIMIT, ROOT_LIMIT, PARAMETER_LIMIT = 20, 4, 20, 8
# A definition as clang-format sets it: it starts in column 0, and so does its closing brace.
CPP_FUNCTION = re.compile(
    r"^(?!namespace|struct|class|enum|union|extern|using|#|//)[^\s}][^;{}]*?"
    r"\b([\w:~]+)\(([^;{}]*)\)[^;{}()]*\{\n.*?^\}",
    re.M | re.S,
)


def file_limit(path: str) -> int:
    if TEST.search(path) or KERNEL.search(path):
        return 1000
    return 250 if BINDING.search(path) else 800


def functions(path: str, text: str):
    """Yields name, lines and number of positional parameters of each function."""
    if path.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                lines = (node.end_lineno - body[0].lineno + 1) if body else 1
                yield node.name, lines, len(node.args.posonlyargs) + len(node.args.args)
    else:
        for match in CPP_FUNCTION.finditer(text):
            parameters = re.sub(r"<[^<>]*>|\([^()]*\)", "", match[2])
            yield match[1], match[0].count("\n") + 1, parameters.count(",") + 1


def main() -> int:
    files = subprocess.check_output(["git", "ls-files"], text=True).split()
    faults, core = [], collections.Counter()

    def check(what: str, size: int, limit: int, unit: str):
        if size > limit and what not in EXEMPT:
            faults.append(f"{what}: {size} {unit}, at most {limit}")

    for path in filter(CODE.search, files):
        text = pathlib.Path(path).read_text()
        check(path, text.count("\n"), file_limit(path), "lines")
        limit = 250 if KERNEL.search(path) else 80
        for name, lines, parameters in functions(path, text):
            check(f"{path}::{name}", lines, limit, "lines")
            if not path.startswith("src/ffi/"):  # there the binding dictates one per operand
                check(f"{path}::{name}", parameters, PARAMETER_LIMIT, "parameters")
        if path.startswith(("src/", "python/", "include/")) and not TEST.search(path):
            core[path.split("/")[0]] += text.count("\n")
    folders = collections.defaultdict(set)
    for path in files:
        parts = path.split("/")
        check(path, len(parts) - 1, DEPTH_LIMIT, "folders deep")
        for depth in range(len(parts)):
            folders["/".join(parts[:depth])].add(parts[depth])
        for bad in {"legacy", "v2", "utils", "misc"}.intersection(parts):
            faults.append(f"{path}: no folder or file is called {bad}")
    for folder, entries in folders.items():
        visible = [e for e in entries if not e.startswith(".")]
        check(folder or ".", len(visible), ROOT_LIMIT if not folder else FOLDER_LIMIT, "entries")
    if len(EXEMPT) > max(3, 0.03 * len(files)):
        faults.append(f"{len(EXEMPT)} exemptions are more than 3 % of {len(files)} files")
    total = ", ".join(f"{name} {lines}" for name, lines in sorted(core.items()))
    faults.append(f"sizes: core lines {sum(core.values())} ({total}), {len(faults)} faults")
    print("\n".join(faults))
    return 1 if len(faults) > 1 else 0


if __name__ == "__main__":
    sys.exit(main())

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Checks for the licence line, and against unfinished marks and paths of one machine."""

import pathlib
import re
import subprocess
import sys

LICENCE = "Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0"
SOURCE = re.compile(r"\.(h|cc|cu|cuh|inc|py|sh|cmake|toml)$|CMakeLists\.txt$|Makefile$|\.ci/run$")
FORBIDDEN = [
    (re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b"), "unfinished mark"),
    (re.compile(r"(?<![\w.~])/(root|home/\w+|work|tmp/ab)/"), "path of one machine"),
    (re.compile(r"https?://[\w.-]*(pypi|pythonhosted|deb\.debian|index\.)[\w.-]*"), "package host"),
]


def main() -> int:
    files = subprocess.check_output(["git", "ls-files"], text=True).split()
    faults = []
    for path in files:
        data = pathlib.Path(path).read_bytes()
        if b"\0" in data:
            faults.append(f"{path}: binary or generated file")
            continue
        lines = data.decode().splitlines()
        if SOURCE.search(path) and lines and LICENCE not in "".join(lines[:2]):
            faults.append(f"{path}: the first line must be: {LICENCE}")
        for number, line in enumerate(lines, 1):
            for pattern, what in FORBIDDEN:
                if match := pattern.search(line):
                    faults.append(f"{path}:{number}: {what}: {match[0]}")
    print("\n".join(faults + [f"text: {len(files)} files, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Checks every commit message: `scope: imperative`, at most 72 characters, no trailers."""

import re
import subprocess
import sys

SUBJECT = re.compile(r"[a-z0-9_.+/-]+(, ?[a-z0-9_.+/-]+)*: (\w[\w-]*)\b.*[^.]$")
# A first word in the past or the progressive is no imperative; these only look like one.
LOOKS_ALIKE = set("embed feed need seed shed speed bring string focus".split())


def fault(subject: str, body: str) -> str | None:
    match = SUBJECT.fullmatch(subject)
    if len(subject) > 72:
        return f"{len(subject)} characters, at most 72"
    if not match:
        return "must read `scope: imperative`, without a full stop"
    word = match[2].lower()
    if word not in LOOKS_ALIKE and re.search(r"(ed|ing|[^s]s)$", word):
        return f"`{match[2]}` is no imperative"
    if re.search(r"^[A-Z][A-Za-z-]+-[Bb]y: ", body, re.M):
        return "has a trailer"
    return None


def main() -> int:
    command = ["git", "log", "--no-merges", "--format=%h%x1f%s%x1f%b%x1e"]
    log = subprocess.check_output(command, text=True)
    commits = [entry.strip("\n").split("\x1f") for entry in log.split("\x1e") if "\x1f" in entry]
    faults = [f"{h} {s!r}: {why}" for h, s, b in commits if (why := fault(s, b))]
    print("\n".join(faults + [f"commits: {len(commits)} messages, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

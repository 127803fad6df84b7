# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What a process keeps of freed memory, and what it gives back."""

import json
import platform
import subprocess
import sys

import pytest

from anabranch.train import machine

# 200 MiB in blocks that malloc serves from its heap, below one that stays.
PROGRAM = """
import json, sys
from anabranch.train import machine
machine.keep_freed_memory()
blocks = [bytearray(b"1") * (1 << 16) for _ in range(3200)]
above = bytearray(b"1") * (1 << 16)
sizes = [machine.resident_gib()]
del blocks
sizes.append(machine.resident_gib())
machine.return_freed_memory()
sizes.append(machine.resident_gib())
print(json.dumps(sizes))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these calls are glibc's")
def test_freed_memory_is_kept_until_it_is_returned():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    full, freed, returned = (1024 * gib for gib in json.loads(run.stdout))
    assert full - freed < 20, "MiB of 200 went back although they are to be kept"
    assert freed - returned > 180, "MiB of 200 should have gone back"


def test_a_process_that_grew_by_what_it_cannot_use_gives_that_back_once(monkeypatch):
    #         1st step  same  moved  after  same  more is needed, and stays
    sizes = [1.0, 1.01, 1.25, 1.0, 1.01, 1.1, 1.1, 1.1, 1.1]
    returned = []
    monkeypatch.setattr(
        machine, "return_freed_memory", lambda: returned.append(machine.resident_gib())
    )
    freed = machine.FreedMemory()
    for size in sizes:
        monkeypatch.setattr(machine, "resident_gib", lambda size=size: size)
        freed.after_step()
    assert returned == [1.25, 1.1]

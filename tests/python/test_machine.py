# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What a process keeps of freed memory, and what it gives back."""

import json
import platform
import subprocess
import sys
import time

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


@pytest.fixture
def returned(monkeypatch):
    """The resident sizes at which memory was returned; nothing is allocated."""
    sizes = []
    monkeypatch.setattr(machine, "allocated_gib", lambda: 0.0)
    monkeypatch.setattr(
        machine, "return_freed_memory", lambda: sizes.append(machine.resident_gib())
    )
    return sizes


def test_a_process_that_grew_by_what_it_cannot_use_gives_that_back_once(monkeypatch, returned):
    # places settle  3rd step  same  moved  after  same  more is needed, and stays
    sizes = [1.3, 1.2, 1.0, 1.01, 1.25, 1.0, 1.01, 1.1, 1.1, 1.1, 1.1]
    freed = machine.FreedMemory()
    for size in sizes:
        monkeypatch.setattr(machine, "resident_gib", lambda size=size: size)
        freed.after_step()
    assert returned == [1.3, 1.2, 1.25, 1.1]


def test_temporaries_that_are_freed_late_are_waited_for_and_what_stays_is_not(
    monkeypatch, returned
):
    freed = machine.FreedMemory(patience=0.2)
    freed.after_step()
    allocated = [0.3, 0.3, 0.3, 0.0]  # of XLA's thread, after the results exist
    monkeypatch.setattr(machine, "allocated_gib", lambda: allocated.pop(0))
    freed.after_step()
    assert allocated == []
    monkeypatch.setattr(machine, "allocated_gib", lambda: 0.3)
    freed.after_step()  # waits in vain, and takes it as needed
    began = time.perf_counter()
    freed.after_step()
    assert time.perf_counter() - began < 0.1


@pytest.mark.skipif(not machine.allocated_gib(), reason="glibc 2.33 and later tell")
def test_what_malloc_handed_out_is_known():
    before = machine.allocated_gib()
    block = bytearray(100 << 10)  # below the threshold of mmap
    assert machine.allocated_gib() - before > len(block) * 0.9 / 2**30

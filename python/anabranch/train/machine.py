# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""What the operating system says about this process and this machine (Linux); nothing here is changed."""

import ctypes
import gc
import math
import os
import platform
import time
from importlib import metadata
from pathlib import Path

# Batches and metrics come and go between steps; temporaries of a step that matters are larger.
_UNNOTICED_GIB = 1 / 1024


def cpu_model() -> str:
    """Model name of the CPU, or the architecture where /proc does not say."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def package_version() -> str:
    """Version of the installed package; "uninstalled" when it runs straight from its sources."""
    try:
        return metadata.version("anabranch")
    except metadata.PackageNotFoundError:
        return "uninstalled"


def usable_cpus() -> int:
    """CPUs that this process may run on: its affinity."""
    return len(os.sched_getaffinity(0))


def cpu_quota() -> float | None:
    """CPU limit of this process's control group in CPUs, or None where there is no limit."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            quota = _quota_v2(path)
        elif "cpu" in controllers.split(","):
            quota = _quota_v1(path)
        else:
            continue
        if quota is not None:
            return quota
    return None


def respect_cpu_quota() -> None:
    """Tells XLA's thread pool about a CPU quota; call before jax starts.

    XLA sizes its pool by affinity or by NPROC, never by the quota, and threads beyond the quota are put to sleep in
    the middle of their work. A value that the user has set stays.
    """
    quota = cpu_quota()
    if quota is not None and quota < usable_cpus():
        os.environ.setdefault("NPROC", str(max(1, math.floor(quota))))


def keep_freed_memory() -> None:
    """Lets this process keep memory that XLA frees, for the next step; call before jax starts. No-op without glibc.

    XLA allocates a step's temporaries anew each time. glibc serves large blocks by mmap and returns them at once, so
    every step would fault in and clear the same hundreds of megabytes again: a quarter of a training step's CPU time.
    One heap for all threads, grown by sbrk and never trimmed, has none of that. Only programs of our own ask for
    this; importing the library changes nothing.
    """
    arena_max, mmap_max, trim_threshold = (
        -8,
        -4,
        -1,
    )  # M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(arena_max, 1)
    mallopt(mmap_max, 0)
    mallopt(trim_threshold, -1)


def return_freed_memory() -> None:
    """Returns to the system what this process freed, after work that does not come back. No-op without glibc.

    Compiling `bench-190m`'s step leaves 0.12 GB of free blocks between others, in which no array of a step
    fits: without this they count in the peak of every step.
    """
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return
    gc.collect()  # JAX's programs of one use are in cycles
    malloc_trim(ctypes.c_size_t(0))


class FreedMemory:
    """Keeps a loop that allocates the same in every step from growing; for a process that keeps freed memory.

    XLA's thread frees a step's temporaries up to some milliseconds after the results exist, while its other threads
    still spin. A step that starts before that takes new memory for its own, and the process grows by all of them.

    glibc takes the smallest free block that fits, so the first steps find other places than later ones: what they
    touched is returned to the system after each of them.

    And it asks for up to 96 bytes more than an aligned block gets and frees them as blocks of their own. Once others
    have taken those, an array of the same size no longer fits where the last one lay. When a process has grown by what
    it cannot use, that is returned to the system.
    """

    def __init__(self, growth: float = 0.02, patience: float = 0.02) -> None:
        """`growth`: the share by which resident memory may grow unnoticed.

        `patience`: the longest time to wait for a step's temporaries, in seconds.
        """
        self._growth, self._patience = growth, patience
        self._settling = 2
        self._limit: float | None = None
        self._in_use: float | None = None

    def after_step(self) -> None:
        """To be called after every step; the third one, and the one after a later return, say what a step needs."""
        self._wait()
        resident = resident_gib()
        if self._settling > 0:
            self._settling -= 1
            return_freed_memory()
        elif self._limit is None:
            self._limit = resident * (1 + self._growth)
        elif resident > self._limit:
            return_freed_memory()
            self._limit = None

    def _wait(self) -> None:
        """Until no more is allocated than after the last step; what stays longer than `patience` counts as needed."""
        until = time.perf_counter() + self._patience
        in_use = allocated_gib()
        expected = 0.0 if self._in_use is None else self._in_use + _UNNOTICED_GIB
        while in_use > expected and time.perf_counter() < until:
            time.sleep(0.0005)
            in_use = allocated_gib()
        self._in_use = in_use


def memory_gib() -> float:
    """Physical memory of the machine in GiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def resident_gib() -> float:
    """Resident memory of this process now, in GiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30


def allocated_gib() -> float:
    """What malloc has handed out from its first heap and not got back, in GiB; 0 without glibc 2.33 or later."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return 0.0
    mallinfo.restype = _MallInfo
    return mallinfo().uordblks / 2**30


class _MallInfo(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def _quota_v2(path: str) -> float | None:
    folder = Path("/sys/fs/cgroup") / path.lstrip("/")
    for candidate in (folder, Path("/sys/fs/cgroup")):
        try:
            limit, period = (candidate / "cpu.max").read_text(encoding="ascii").split()
        except (OSError, ValueError):
            continue
        return None if limit == "max" else int(limit) / int(period)
    return None


def _quota_v1(path: str) -> float | None:
    for candidate in (Path("/sys/fs/cgroup/cpu") / path.lstrip("/"), Path("/sys/fs/cgroup/cpu")):
        try:
            limit = int((candidate / "cpu.cfs_quota_us").read_text(encoding="ascii"))
            period = int((candidate / "cpu.cfs_period_us").read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        return None if limit <= 0 else limit / period
    return None

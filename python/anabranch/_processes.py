# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""This process as one rank among those that mpirun has started.

MPI says who the ranks are (``lib_anabranch_mpi.so``, built where an MPI was found), the engine lets them
share memory, and ``jax.distributed`` makes their devices one mesh.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import os
import socket
import sys
from pathlib import Path

import jax

from anabranch import _coordinator, _register
from anabranch.errors import UsageError

# Variables by which MPI launchers tell a process how many there are.
WORLD_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS")
# For mpirun, of any MPI: more ranks than cores, and as root; and when a rank has ended, time for the others
# to say so before they are killed.
LAUNCHER_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_odls_base_sigkill_timeout": "5",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}
_TEXT_BYTES = 1024
# JAX notices by itself that a process is gone; the engine, which can name it, shall be first.
_JAX_HEARTBEAT_SECONDS = 3600


class ProcessError(RuntimeError):
    """Another rank ended, did not come in time, or made another call."""


@dataclasses.dataclass(frozen=True)
class Group:
    """The processes: this one's rank, their number, and the MPI that started them."""

    rank: int
    size: int
    library: str


_group: Group | None = None
_ended = False


def launched() -> int:
    """How many processes the launcher says there are; 1 without one."""
    for name in WORLD_SIZES:
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 1:
            return int(value)
    return 1


def module_path() -> Path:
    """Where the engine's MPI module is, if it was built."""
    return _register.library_path().with_name("lib_anabranch_mpi.so")


def started() -> Group | None:
    """What ``start`` returned, or None before it."""
    return _group


def start() -> Group:
    """Joins the other processes; every process must call it. Later calls return the same group.

    Raises:
      UsageError: this build has no MPI, or its MPI is not the one whose mpirun started the process.
      ProcessError: the processes cannot share memory: they are not all on one host.
    """
    global _group
    if _group is None:
        _group = _start()
        atexit.register(_at_exit)
    return _group


def start_processes() -> Group:
    """Makes the devices of all processes that mpirun has started one JAX mesh, in the order of ranks.

    Call it first in the program, before JAX looks for devices; ``jax.devices()`` then lists one device of
    every process and ``ExpertParallel`` works between them. In a process on its own it does nothing.

    Returns:
      The group: ``rank``, ``size`` and the name of the MPI ``library``.

    Raises:
      UsageError: see ``start``; or JAX has been started before.
      ProcessError: the processes are not all on one host.
    """
    group = start()
    if group.size > 1 and not jax.distributed.is_initialized():
        address = _address(group)
        try:
            with _coordinator.outliving_service():
                jax.distributed.initialize(
                    address,
                    group.size,
                    group.rank,
                    heartbeat_timeout_seconds=_JAX_HEARTBEAT_SECONDS,
                )
        except RuntimeError as error:
            raise UsageError(f"start_processes: {error}") from error
    return group


def between() -> bool:
    """Whether a mesh's ranks are processes: JAX was started so. Starts the transport between them if need be."""
    if jax.process_count() == 1:
        return False
    start()
    return True


def gather(operation: str, mine: bytes) -> list[bytes]:
    """What every rank passed, all of one length, by rank; ``operation`` is what errors call it.

    Raises:
      ProcessError: another rank ended, did not come in time, or calls something else.
    """
    group = start()
    everybody = ctypes.create_string_buffer(max(len(mine) * group.size, 1))
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    function = _register.library().anabranch_processes_gather
    function.argtypes = (
        ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p,
        ctypes.c_int64,
    )  # fmt: skip
    # The call may be told of after this function has returned: its name must stay.
    name = _names.setdefault(operation, operation.encode())
    if function(name, mine, len(mine), everybody, text, _TEXT_BYTES):
        raise ProcessError(text.value.decode(errors="replace"))
    return [everybody.raw[i * len(mine) : (i + 1) * len(mine)] for i in range(group.size)]


_names: dict[str, bytes] = {}

# Ranks of each group of a partition of the processes, in order.
Partition = tuple[tuple[int, ...], ...]


def number_of(partition: Partition) -> int:
    """The engine's number of this process's group in ``partition``; 0 is that of all processes.

    Every process must call it with the same partitions in the same order: the first time makes the group.

    Raises:
      ValueError: the partition does not hold every process once.
      ProcessError: as ``gather``.
    """
    group = start()
    if sorted(rank for ranks in partition for rank in ranks) != list(range(group.size)):
        raise ValueError(
            f"the mesh has ranks {partition}; it must hold each of {group.size} processes once, in order"
        )
    if partition == (tuple(range(group.size)),):
        return 0
    if partition not in _partitions:
        _split(next(ranks for ranks in partition if group.rank in ranks))
        _partitions[partition] = 1 + len(_partitions)
    return _partitions[partition]


_partitions: dict[Partition, int] = {}


def _split(members: tuple[int, ...]) -> None:
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    function = _register.library().anabranch_processes_split
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64)
    ranks = (ctypes.c_int32 * len(members))(*members)
    if function(ranks, len(members), text, _TEXT_BYTES):
        raise ProcessError(text.value.decode(errors="replace"))


def timeout() -> float:
    """Seconds that a rank waits for the others (``ANABRANCH_COMM_TIMEOUT_SECONDS``), as the engine does."""
    function = _register.library().anabranch_comm_timeout
    function.restype = ctypes.c_double
    return float(function())


_step = 0


def current_step() -> int:
    """The training step that calls belong to; 0 before the first."""
    return _step


def set_step(step: int) -> None:
    """Tells the engine to which training step the calls from now on belong."""
    global _step
    _step = step
    function = _register.library().anabranch_processes_run
    function.argtypes = (ctypes.c_int64,)
    function.restype = None
    function(step)


def end() -> None:
    """Leaves the group, with all ranks; done at the end of a program in any case.

    A process that goes without is taken for a failed one.
    """
    global _ended
    if _group is None or _ended:
        return
    _ended = True
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()
    ctypes.CDLL(str(module_path())).anabranch_mpi_end()


def _at_exit() -> None:
    if getattr(sys, "last_type", None) is not None:
        # An exception ends this program: JAX and MPI would wait for ranks that may wait for this one.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    end()


def _start() -> Group:
    path = module_path()
    if not path.exists():
        raise UsageError(
            f"this build has no MPI ({path} does not exist): install libopenmpi-dev, or `pip install "
            "mpich`, and build again"
        )
    module = ctypes.CDLL(str(path))
    rank, size = ctypes.c_int64(), ctypes.c_int64()
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    if module.anabranch_mpi_start(
        ctypes.byref(rank), ctypes.byref(size), text, ctypes.c_int64(_TEXT_BYTES)
    ):
        raise UsageError(text.value.decode(errors="replace"))
    library = text.value.decode(errors="replace")
    if size.value == 1 and launched() > 1:
        raise UsageError(
            f"the launcher started {launched()} processes, but {library}, which this build uses, "
            "sees one: start them with its own mpirun"
        )
    if _register.library().anabranch_processes_start(
        rank, size, module.anabranch_mpi_gather, text, ctypes.c_int64(_TEXT_BYTES)
    ):
        raise ProcessError(text.value.decode(errors="replace"))
    return Group(rank.value, size.value, library)


def _address(group: Group) -> str:
    """Address at which rank 0 will listen."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        mine = f"127.0.0.1:{probe.getsockname()[1]}"
    return gather("start", mine.ljust(32).encode())[0].decode().strip()

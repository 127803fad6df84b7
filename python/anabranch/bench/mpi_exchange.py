# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Pack, ``MPI_Alltoallv``, unpack: what dispatch and combine between processes are compared with."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np

from anabranch import _processes, engine
from anabranch.bench import ep

_LINE = 64
_TEXT_BYTES = 1024
_PLAIN, _TUNED, _BARE = range(3)  # ExchangeForm


class _Exchange(ctypes.Structure):
    """``anabranch::Exchange`` of ``src/comm/mpi/mpi_exchange.h``."""

    _fields_ = [
        *(
            (name, ctypes.c_void_p)
            for name in (
                "source", "pack", "send_rows", "receive_rows", "packed", "received", "unpack", "target",
            )
        ),
        *((name, ctypes.c_int64) for name in ("target_rows", "topk", "hidden")),
    ]  # fmt: skip


def calls(
    case: ep.Case, rank: int, expected: tuple[np.ndarray, np.ndarray]
) -> dict[str, Callable[[], float]]:
    """By row name, functions that run one exchange on all ranks together and return its seconds.

    Args:
      case: the routing.
      rank: this process's.
      expected: its rows in expert order, and the sum of the rows of each of its tokens.

    Raises:
      RuntimeError: the exchanges bring something else.
    """
    pack, slot_row, unpack, repack, _, send, _, receive, *_ = case.classic_tables(rank)
    used = len(expected[0])
    x = _place(case.x_host[rank * ep.TOKENS : (rank + 1) * ep.TOKENS])
    rows, back = (_place(np.zeros_like(array)) for array in expected)
    packed, received = (
        _place(np.zeros((count, ep.HIDDEN), x.dtype)) for count in (ep.TOKENS * ep.TOPK, used)
    )
    there = _exchange(x, pack, (send, receive), (packed, received), unpack[:used], rows)
    # On the way home the two buffers change places.
    home = _exchange(rows, repack[:used], (receive, send), (received, packed), slot_row, back)
    for form in (_PLAIN, _TUNED):
        rows[:], back[:] = 0, 0
        _seconds(there, form), _seconds(home, form)
        if not ((rows == expected[0]).all() and (back == expected[1]).all()):
            raise RuntimeError("bench: MPI_Alltoallv did not bring the rows that were sent")
    return {
        "dispatch_alltoallv": functools.partial(_seconds, there, _PLAIN),
        "dispatch_alltoallv_tuned": functools.partial(_seconds, there, _TUNED),
        "combine_alltoallv": functools.partial(_seconds, home, _PLAIN),
        "combine_alltoallv_tuned": functools.partial(_seconds, home, _TUNED),
        "alltoallv": functools.partial(_seconds, there, _BARE),
    }


def _place(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a cache line."""
    memory = np.empty(array.nbytes + _LINE, np.uint8)
    start = -memory.ctypes.data % _LINE
    placed = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[:] = array
    return placed


def _exchange(
    source: np.ndarray,
    pack: np.ndarray,
    counts: tuple[np.ndarray, np.ndarray],
    buffers: tuple[np.ndarray, np.ndarray],
    unpack: np.ndarray,
    target: np.ndarray,
) -> _Exchange:
    arrays = [source, pack, *counts, *buffers, unpack, target]
    arrays = [np.ascontiguousarray(array) for array in arrays]
    topk = unpack.size // len(target)
    exchange = _Exchange(*(array.ctypes.data for array in arrays), len(target), topk, ep.HIDDEN)
    exchange.arrays = arrays  # alive as long as their addresses
    return exchange


def _seconds(exchange: _Exchange, form: int) -> float:
    group = _processes.start()
    function = ctypes.CDLL(str(_processes.module_path())).anabranch_mpi_time_exchange
    threads = max(1, engine.num_threads() // group.size)  # as many as dispatch and combine use
    seconds = ctypes.c_double()
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    if function(
        ctypes.byref(exchange), form, ctypes.c_int64(threads), ctypes.c_int64(1), ctypes.byref(seconds),
        text, ctypes.c_int64(_TEXT_BYTES),
    ):  # fmt: skip
        raise RuntimeError(text.value.decode(errors="replace"))
    return seconds.value

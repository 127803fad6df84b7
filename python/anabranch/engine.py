# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Facts about the engine and the machine it runs on."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from anabranch import _register


def _text(function: Callable[[Any, Any], int]) -> str:
    function.argtypes = (ctypes.c_char_p, ctypes.c_int64)  # type: ignore[attr-defined]
    function.restype = ctypes.c_int64  # type: ignore[attr-defined]
    buffer = ctypes.create_string_buffer(4096)
    function(buffer, len(buffer))
    return buffer.value.decode()


def isa() -> str:
    """Name of the kernel table in use: ``generic``, ``avx2``, ``avx512`` or ``avx512_bf16``."""
    return _text(_register.library().anabranch_isa)


def forced_isa_error() -> str:
    """Why ``ANABRANCH_FORCE_ISA`` was not obeyed; empty when it was, or is not set."""
    return _text(_register.library().anabranch_forced_isa_error)


def cpu_features() -> list[str]:
    """CPU features that the kernel tables need, as ``/proc/cpuinfo`` spells them."""
    return _text(_register.library().anabranch_cpu_features).split()


def num_threads() -> int:
    """Processors that this process may run on: the size of XLA's pool."""
    function = _register.library().anabranch_num_processors
    function.restype = ctypes.c_int64
    return int(function())


def measure_peak_gflops(dtype: str) -> float:
    """Measures the multiply-add peak of ``dtype`` on all threads, in 1e9 operations per second.

    Args:
      dtype: ``"bfloat16"`` or ``"float32"``.

    Raises:
      ValueError: another dtype.
    """
    if dtype not in ("bfloat16", "float32"):
        raise ValueError(f"measure_peak_gflops: dtype={dtype!r}; must be 'bfloat16' or 'float32'")
    function = _register.library().anabranch_measure_peak_gflops
    function.argtypes = (ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_double
    return float(function(dtype == "bfloat16", num_threads()))


def measure_copy_gb_per_s() -> float:
    """Measures a large copy on all threads: bytes read plus written, in 1e9 per second."""
    return _copy_rate(_register.library().anabranch_measure_copy_gb_per_s)


def measure_stream_gb_per_s() -> float:
    """Measures the same copy with stores past the caches, which do not read what they overwrite."""
    return _copy_rate(_register.library().anabranch_measure_stream_gb_per_s)


def time_stream_copy(source: int, target: int, size: int, threads: int) -> float:
    """Seconds of one such copy of ``size`` bytes between two addresses that the caller owns."""
    function = _register.library().anabranch_time_stream_copy
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_double
    return float(function(source, target, size, threads))


def _copy_rate(function: Any) -> float:
    function.argtypes = (ctypes.c_int64,)
    function.restype = ctypes.c_double
    return float(function(num_threads()))


class Span(NamedTuple):
    """What was done from ``begin`` to ``end`` (seconds of a clock that the processes of a host share).

    ``track`` is ``"exchange"`` or ``"products"``; ``number`` the place of the exchange in the program, or the
    first expert of the products.
    """

    track: str
    name: str
    number: int
    begin: float
    end: float


@contextlib.contextmanager
def timeline() -> Iterator[list[Span]]:
    """Records exchanges between ranks and the products of their experts while the body runs.

    Yields:
      A list that is filled when the body ends, in the order in which the spans ended.
    """
    start, stop = (
        getattr(_register.library(), f"anabranch_timeline_{n}") for n in ("start", "stop")
    )
    stop.argtypes, stop.restype = (ctypes.c_void_p, ctypes.c_int64), ctypes.c_int64
    spans: list[Span] = []
    start()
    try:
        yield spans
    finally:
        recorded = np.zeros(stop(None, 0), _SPAN)
        stop(recorded.ctypes.data, len(recorded))
        for name, track, number, begin, end in recorded.tolist():
            spans.append(Span(_TRACKS[track], name.decode(), number, begin * 1e-9, end * 1e-9))


_TRACKS = ("exchange", "products")
_SPAN = np.dtype(
    [("name", "S48"), ("track", "i8"), ("number", "i8"), ("begin", "i8"), ("end", "i8")]
)


def set_dispatch_delay(seconds: float) -> None:
    """Lets every dispatch between processes take that much longer, as over a slower network."""
    function = _register.library().anabranch_set_dispatch_delay
    function.argtypes, function.restype = (ctypes.c_double,), None
    function(seconds)


def time_mxfp8_packing(codes: Any, scale: Any, rounds: int) -> tuple[Any, list[float]]:
    """Packs MXFP8 codes into bf16 panels on one thread, as products do with quantised weights.

    Args:
      codes: E4M3 [K, N], K even, N a multiple of 64.
      scale: E8M0 [K / 32, N], blocks along K.
      rounds: how often.

    Returns:
      Panels uint32 [N / 64, K / 2, 64] (even k in the low half), and the seconds of each round.
    """
    k, n = codes.shape
    codes, scale = (np.ascontiguousarray(a).view(np.uint8) for a in (codes, scale))
    panels = np.empty((n // 64, k // 2, 64), np.uint32)
    seconds = (ctypes.c_double * rounds)()
    function = _register.library().anabranch_time_mxfp8_packing
    function.argtypes = (*(ctypes.c_void_p,) * 2, *(ctypes.c_int64,) * 2, ctypes.c_void_p,
                         ctypes.c_int64, ctypes.c_void_p)  # fmt: skip
    function.restype = None
    function(codes.ctypes.data, scale.ctypes.data, k, n, panels.ctypes.data, rounds, seconds)
    return panels, list(seconds)

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The safetensors format: eight bytes of length, a JSON header, raw little-endian arrays.

The `safetensors` package reads no F8_E8M0 into numpy and wants numpy to know the name of every type; a header and a
memory map need neither.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors.numpy

DTYPES: dict[str, Any] = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu, "I64": np.int64, "I32": np.int32, "I16": np.int16,
    "I8": np.int8, "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8,
    "BOOL": np.bool_,
}  # fmt: skip


class Entry(NamedTuple):
    """Where a tensor lies in its file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, Entry]:
    """Returns the tensors of a file by name; ValueError says what is wrong with it."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            raise ValueError(
                f"{path}: {size} bytes are no safetensors file with a header of {length}"
            )
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            return {
                name: _entry(path, name, info, 8 + length, size) for name, info in header.items()
            }
        except (
            KeyError,
            TypeError,
            AttributeError,
            UnicodeDecodeError,
            json.JSONDecodeError,
        ) as error:
            raise ValueError(f"{path}: damaged header ({error})") from error


def _entry(path: Path, name: str, info: dict[str, Any], data: int, size: int) -> Entry:
    begin, end = (data + int(offset) for offset in info["data_offsets"])
    entry = Entry(info["dtype"], tuple(map(int, info["shape"])), begin, end)
    described = f"{path}: tensor {name} {entry.dtype}{list(entry.shape)}"
    if entry.dtype not in DTYPES:
        raise ValueError(f"{described}: type must be one of {', '.join(DTYPES)}")
    needed = math.prod(entry.shape) * np.dtype(DTYPES[entry.dtype]).itemsize
    if end - begin != needed or begin < data or end > size:
        raise ValueError(f"{described}: needs {needed} bytes, has {begin} to {end} of {size}")
    return entry


def read_tensor(path: Path, entry: Entry) -> np.ndarray:
    """Returns one tensor, read-only; the file stays mapped as long as it lives."""
    dtype = np.dtype(DTYPES[entry.dtype])
    if not math.prod(entry.shape):
        return np.zeros(entry.shape, dtype)
    raw = np.memmap(path, np.uint8, "r", entry.begin, (entry.end - entry.begin,))
    return np.asarray(raw).view(dtype).reshape(entry.shape)


def write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes a file. OSError if that fails."""
    try:
        safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
    except safetensors.SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error

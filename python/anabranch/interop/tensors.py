# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""A checkpoint's tensors by name, quantised ones put together from the parts that are published.

| published as | type and shape | read as |
|---|---|---|
| DeepSeek-V3: `NAME`, `NAME_scale_inv` | F8_E4M3 [N, K]; F32 [ceil(N / 128), ceil(K / 128)] | NAME, fp8_block_128x128 |
| GPT-OSS: `NAME_blocks`, `NAME_scales` | U8 [..., K / 32, 16]; U8 [..., K / 32] | NAME, mxfp4 [..., K] |

Both are multiplied by their scales. Two E2M1 elements share a byte, the first in its low half; a
scale byte is E8M0, 2^(byte - 127).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from anabranch.interop import safetensors_file
from anabranch.ops.quantize import FORMATS, Quantized

INDEX = "model.safetensors.index.json"
_FP8, _MXFP4 = "fp8_block_128x128", "mxfp4"
_SCALE, _BLOCKS, _SCALES = "_scale_inv", "_blocks", "_scales"
_BYTES_OF_BLOCK = 16


def open_tensors(path: str | Path) -> Tensors:
    """Returns the tensors of a safetensors file, or of a folder of them with or without an index.

    Nothing is read but headers. Parts of one tensor may lie in different files, as they do in
    DeepSeek-V3. ValueError for a damaged file, an index that names a missing tensor, or a scale whose
    shape does not fit; OSError for a missing file.
    """
    path = Path(path)
    if not path.is_dir():
        return Tensors({name: (path, e) for name, e in safetensors_file.read_header(path).items()})
    files = sorted(path.glob("*.safetensors"))
    index = path / INDEX
    weight_map = json.loads(index.read_text("utf-8"))["weight_map"] if index.exists() else None
    if weight_map is not None:
        files = [path / file for file in sorted(set(weight_map.values()))]
    elif not files:
        raise FileNotFoundError(f"{path}: no *.safetensors file")
    found = {
        name: (file, entry)
        for file in files
        for name, entry in safetensors_file.read_header(file).items()
        if weight_map is None or weight_map.get(name) == file.name
    }
    for name, file in (weight_map or {}).items():
        if name not in found:
            raise ValueError(f"{index}: tensor {name} is not in {file}")
    return Tensors(found)


class Tensors(Mapping[str, "np.ndarray | Quantized"]):
    """A read-only mapping from names to arrays; each look-up reads its tensor anew.

    A quantised one is a `Quantized`, whose data and scale have the bits of the file and whose
    `dequantize` gives its values.
    """

    def __init__(self, entries: Mapping[str, tuple[Path, safetensors_file.Entry]]) -> None:
        """Pairs up parts; see `open_tensors`."""
        self._entries = dict(entries)
        self._parts: dict[str, tuple[str, ...]] = {}
        used = set()
        for name, (_, entry) in self._entries.items():
            stem = name.removesuffix(_BLOCKS)
            if entry.dtype == "F8_E4M3" and name + _SCALE in self._entries:
                self._parts[name] = (_FP8, name, name + _SCALE)
            elif name != stem and entry.dtype == "U8" and stem + _SCALES in self._entries:
                self._parts[stem] = (_MXFP4, name, stem + _SCALES)
            else:
                continue
            used |= set(self._parts[name if name in self._parts else stem][1:])
        plain = (name for name in self._entries if name not in used)
        self._parts |= {name: ("", name) for name in plain}

    def __getitem__(self, name: str) -> np.ndarray | Quantized:
        """Returns one tensor."""
        kind, *names = self._parts[name]
        arrays = [safetensors_file.read_tensor(*self._entries[part]) for part in names]
        if not kind:
            return arrays[0]
        return _fp8(name, *arrays) if kind == _FP8 else _mxfp4(name, *arrays)

    def __iter__(self) -> Iterator[str]:
        """Iterates over names."""
        return iter(sorted(self._parts))

    def __len__(self) -> int:
        """Counts tensors."""
        return len(self._parts)


def write_tensors(path: str | Path, tensors: Mapping[str, Any]) -> None:
    """Writes a safetensors file in the layout that `open_tensors` reads, bit for bit.

    Arrays keep their type. A `Quantized` must be fp8_block_128x128 of two dimensions, or mxfp4 with
    blocks along a last axis that is a multiple of 32: other formats have no published layout
    (ValueError, as for two tensors of one name). OSError if writing fails.
    """
    written: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        parts = {name: tensor}
        if isinstance(tensor, Quantized):
            parts = _published(name, tensor)
        for part, array in parts.items():
            if part in written:
                raise ValueError(f"write_tensors: two tensors would be called {part}")
            array = np.asarray(array)
            written[part] = np.array(array, array.dtype.newbyteorder("<"), order="C", copy=None)
    safetensors_file.write(Path(path), written)


def _fp8(name: str, weight: np.ndarray, scale: np.ndarray) -> Quantized:
    expected = FORMATS[_FP8].scale_counts(*weight.shape, 1) if weight.ndim == 2 else None
    if scale.shape != expected or scale.dtype != np.float32:
        raise ValueError(
            f"{name}{_SCALE} is {scale.dtype.name}{list(scale.shape)}; must be float32 with a number "
            f"for each 128 x 128 block of {name} {list(weight.shape)}"
        )
    return _quantized(weight, scale, _FP8)


def _mxfp4(name: str, blocks: np.ndarray, scales: np.ndarray) -> Quantized:
    if blocks.shape != (*scales.shape, _BYTES_OF_BLOCK) or scales.dtype != np.uint8:
        raise ValueError(
            f"{name}{_BLOCKS} uint8{list(blocks.shape)} and {name}{_SCALES} {scales.dtype.name}"
            f"{list(scales.shape)}; must be uint8 [..., K / 32, {_BYTES_OF_BLOCK}] and [..., K / 32]"
        )
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1)
    codes = codes.reshape(*scales.shape[:-1], scales.shape[-1] * 2 * _BYTES_OF_BLOCK)
    elements = codes.view(ml_dtypes.float4_e2m1fn)
    return _quantized(elements, scales.view(ml_dtypes.float8_e8m0fnu), _MXFP4)


def _quantized(data: np.ndarray, scale: np.ndarray, format: str) -> Quantized:
    return Quantized(jnp.asarray(data), jnp.asarray(scale), None, None, None, format, -1, None)


def _published(name: str, tensor: Quantized) -> dict[str, np.ndarray]:
    data, scale = np.asarray(tensor.data), np.asarray(tensor.scale)
    whole = tensor.group_sizes is None
    if tensor.format == _FP8 and whole and data.ndim == 2:
        return {name: data, name + _SCALE: scale}
    block = FORMATS[_MXFP4].block
    if tensor.format == _MXFP4 and whole and tensor.axis == -1 and data.shape[-1] % block == 0:
        codes = data.view(np.uint8).reshape(*scale.shape, _BYTES_OF_BLOCK, 2)
        packed = (codes[..., 0] & 15) | (codes[..., 1] << 4)
        return {name + _BLOCKS: packed, name + _SCALES: scale.view(np.uint8)}
    raise ValueError(
        f"write_tensors: {name} is {tensor.format}{list(data.shape)} along axis {tensor.axis}"
        f"{'' if whole else ', in groups'}; must be fp8_block_128x128 [N, K], or mxfp4 along a last axis "
        "that is a multiple of 32"
    )

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""A quantised tensor: elements, scales, and how they belong together."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from anabranch import _register
from anabranch.ops.quantize.formats import FORMATS


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=("data", "scale", "tensor_scale", "group_offsets", "group_sizes"),
    meta_fields=("format", "axis", "num_rows"),
)
@dataclasses.dataclass(frozen=True)
class Quantized:
    """value = data * scale of its block (* tensor_scale).

    data: elements in their ml_dtypes type, in x's shape, or [P, N] in the padded layout of
    `grouped_quantize`. scale: along the quantised axis one per block (blocks end early at an edge):
    [..., M, ceil(N / block)] for axis -1, [..., ceil(M / block), N] for axis -2, in both directions
    for square blocks. tensor_scale: f32, a scalar or [G], for NVFP4, else None. Grouped:
    group_offsets i32 [G + 1] are the first rows of the groups in data, group_sizes the caller's.
    A pytree; the other fields are static.
    """

    data: jax.Array
    scale: jax.Array
    tensor_scale: jax.Array | None
    group_offsets: jax.Array | None
    group_sizes: jax.Array | None
    format: str
    axis: int  # -1 or -2
    num_rows: int | None  # of the caller's array, for grouped ones

    def dequantize(self, dtype: Any = jnp.float32) -> jax.Array:
        """Returns the values as f32 or bf16, in the caller's shape and rows.

        data * scale is computed in f32 (exact for power-of-two scales down to f32's subnormals) and
        rounded once; rows past the last group are 0. ValueError for another dtype.
        """
        dtype = jnp.dtype(dtype)
        if dtype not in (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16)):
            raise ValueError(f"dequantize: dtype {dtype.name}; must be float32 or bfloat16")
        if self.group_sizes is not None:
            shape = (self.num_rows, self.data.shape[1])
            return self._values(self.data, self.scale, self.group_sizes, shape, dtype, 128)
        data, scale = matrix(self.data), matrix(self.scale)
        groups = num_matrices(self.data.shape, self.format, self.axis)
        sizes = jnp.full(groups, data.shape[0] // max(groups, 1), jnp.int32)
        values = self._values(data, scale, sizes, data.shape, dtype, 1)
        return values.reshape(self.data.shape)

    def _values(
        self,
        data: jax.Array,
        scale: jax.Array,
        sizes: jax.Array,
        shape: tuple[int, ...],
        dtype: Any,
        row_alignment: int,
    ) -> jax.Array:
        factor = jnp.ones((), jnp.float32) if self.tensor_scale is None else self.tensor_scale
        return _register.call(
            "dequantize",
            jax.ShapeDtypeStruct(shape, dtype),
            to_bytes(data),
            scale,
            jnp.broadcast_to(factor, sizes.shape),
            sizes,
            format=FORMATS[self.format].code,
            axis=self.axis + 2,
            row_alignment=row_alignment,
        )


def num_matrices(shape: tuple[int, ...], format: str, axis: int) -> int:
    """Matrices that blocks must not cross; 1 where rows are quantised on their own."""
    if axis == -1 and not FORMATS[format].square:
        return 1
    count = 1
    for size in shape[:-2]:
        count *= size
    return count


def matrix(array: jax.Array) -> jax.Array:
    """Leading axes joined: [rows, columns]."""
    if array.ndim == 2:
        return array
    columns = array.shape[-1]
    rows = 1
    for size in array.shape[:-1]:
        rows *= size
    return array.reshape(rows, columns)


def to_bytes(data: jax.Array) -> jax.Array:
    """E2M1 elements as one byte each; others unchanged."""
    if data.dtype != jnp.float4_e2m1fn:
        return data
    return _register.call("unpack_codes", jax.ShapeDtypeStruct(data.shape, jnp.uint8), data)


def from_bytes(data: jax.Array) -> jax.Array:
    """The inverse of `to_bytes` for the codes that the engine wrote."""
    if data.dtype != jnp.uint8:
        return data
    return _register.call("pack_codes", jax.ShapeDtypeStruct(data.shape, jnp.float4_e2m1fn), data)

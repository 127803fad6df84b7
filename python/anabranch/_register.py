# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Loads the engine and registers its operations with XLA; the one place that calls ``jax.ffi``."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

# Every FFI target of the engine. The exported symbol of target X is ``anabranch_X``.
TARGETS = (
    "router",
    "router_grad",
    "ragged_plan",
    "gather_rows",
    "gather_weights",
    "combine_rows",
    "combine_rows_grad",
    "grouped_gemm",
    "grouped_gemm_dgrad",
    "grouped_gemm_wgrad",
    "grouped_gemm_coded",
    "grouped_gemm_dgrad_coded",
    "pack_experts",
    "moe_ffn",
    "moe_ffn_grad",
    "moe_ffn_rows",
    "moe_ffn_rows_grad",
    "activate_rows",
    "activate_rows_grad",
    "weigh_rows",
    "weigh_rows_grad",
    "expert_parallel_prepare",
    "expert_parallel_dispatch",
    "expert_parallel_combine",
    "expert_parallel_decode",
    "encode_rows",
    "ragged_all_to_all",
    "ragged_all_to_all_grad",
    "sum_over_ranks",
    "gather_over_ranks",
    "linear_cross_entropy",
    "linear_cross_entropy_grad",
    "adamw",
    "sum_of_squares",
    "tree_add",
    "rms_norm",
    "add_rms_norm",
    "rms_norm_grad",
    "add_rms_norm_grad",
    "muon",
    "hold",
    "attention",
    "attention_grad",
    "quantize",
    "dequantize",
    "quantize_dequantize",
    "quantize_dequantize_both",
    "tensor_amax",
    "random_hadamard",
    "pack_codes",
    "unpack_codes",
)


def library_path() -> Path:
    """Path of the engine library: ``ANABRANCH_LIBRARY`` if set, else the packaged one."""
    override = os.environ.get("ANABRANCH_LIBRARY")
    if override:
        return Path(override)
    name = "lib_anabranch.so"
    # An editable install keeps Python sources and the built library in different folders.
    import anabranch

    for folder in anabranch.__path__:
        if (Path(folder) / name).exists():
            return Path(folder) / name
    import sysconfig

    return Path(sysconfig.get_path("platlib")) / "anabranch" / name


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded engine library, with every operation registered for platform ``cpu``."""
    path = library_path()
    if not path.exists():
        raise ImportError(f"anabranch: engine library not found at {path}; run `make build`")
    loaded = ctypes.CDLL(str(path))
    for target, function in registrations(loaded).items():
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function), platform="cpu")
    return loaded


def registrations(loaded: ctypes.CDLL) -> dict[str, Any]:
    """Maps the XLA target name of each operation to its function in ``loaded``."""
    return {f"anabranch_{target}": getattr(loaded, f"anabranch_{target}") for target in TARGETS}


def call(
    target: str,
    results: jax.ShapeDtypeStruct | Sequence[jax.ShapeDtypeStruct],
    *operands: jax.Array,
    aliases: dict[int, int] | None = None,
    **attributes: bool | int | float | str,
) -> Any:
    """Calls operation ``target`` on row-major operands.

    Args:
      target: a name in ``TARGETS``.
      results: shape and dtype of the result, or of each result.
      *operands: arrays, in the order of the handler's ``Arg``s.
      aliases: numbers of results by the number of the operand whose memory they take, when nothing
        else needs it: temporaries and donated arguments; XLA copies others first.
      **attributes: the handler's ``Attr``s: bool, int (int64), float (float32) or str.

    Returns:
      One array, or a list of arrays when ``results`` is a sequence.
    """
    library()
    encoded = {name: encode(value) for name, value in attributes.items()}
    operands = align(*operands)
    # Under vmap the call is repeated for each element; operations take no batch dimension.
    function = jax.ffi.ffi_call(
        f"anabranch_{target}",
        results,
        vmap_method="sequential",
        input_output_aliases=aliases,
    )
    # JAX types the results as the same on every rank; they vary as the operands do.
    return jax.tree.map(
        lambda result: _vary(result, _varying(operands[0])), function(*operands, **encoded)
    )


def align(*operands: jax.Array) -> tuple[jax.Array, ...]:
    """Marks all operands as varying over the mesh axes that any of them varies over.

    Inside ``shard_map``, an operation with a gradient rule calls this on its operands before the
    rule applies: the gradient of an operand that is the same on every rank is then summed over the
    ranks, as JAX's own operations do. Elsewhere it returns its arguments.
    """
    axes = frozenset().union(*map(_varying, operands))
    return tuple(_vary(operand, axes) for operand in operands)


def vary_as(array: jax.Array, like: jax.Array) -> jax.Array:
    """Marks ``array`` as varying over the mesh axes that ``like`` varies over."""
    return _vary(array, _varying(like))


def _vary(array: jax.Array, axes: frozenset[str]) -> jax.Array:
    missing = tuple(sorted(axes - _varying(array)))
    return jax.lax.pcast(array, missing, to="varying") if missing else array


def _varying(array: jax.Array) -> frozenset[str]:
    manual_axes = getattr(jax.typeof(array), "mat", None)
    return manual_axes.varying if manual_axes is not None else frozenset()


def encode(value: bool | int | float | str) -> Any:
    """The form in which an attribute reaches its handler: int64 and float32."""
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return np.int64(value)
    if isinstance(value, float):
        return np.float32(value)
    return value

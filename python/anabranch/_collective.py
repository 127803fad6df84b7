# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Calls operations in which the devices of a mesh axis take part together.

An operation that XLA may run in a different order on different devices needs a name of its own, or
two devices would meet in different calls. ``jax.ffi.ffi_call`` cannot give one: equal calls are
lowered once and shared. The primitive here numbers each call as it is lowered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax.interpreters import mlir

from anabranch import _processes, _register

AxisName = str | tuple[str, ...]


class Place(NamedTuple):
    """Where a device stands: ``index`` i32 [2] = (rank, group), and the number of ranks.

    ``processes``: every rank is a process, and the group the engine's number of that of this process; else all are
    devices of this one.
    """

    index: jax.Array
    ranks: int
    processes: bool = False


def place(axis_name: AxisName, *, processes: bool = False) -> Place:
    """The calling device's place along a mesh axis, or several; inside ``jax.shard_map``.

    Devices that differ only along ``axis_name`` form a group.
    """
    names = (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    mesh = jax.sharding.get_abstract_mesh()
    others = tuple(name for name in mesh.manual_axes if name not in names)
    rank = jax.lax.axis_index(names)
    if processes:
        group = jnp.full_like(rank, _processes.number_of(_partition(mesh, names)))
    else:
        group = jax.lax.axis_index(others) if others else jnp.zeros_like(rank)
    index = jnp.stack(_register.align(rank, group)).astype(jnp.int32)
    return Place(index, jax.lax.axis_size(names), processes)


def _partition(mesh: Any, names: tuple[str, ...]) -> _processes.Partition:
    """The ranks of a mesh of processes in groups along the named axes."""
    axes = mesh.axis_names
    ranks = np.arange(mesh.size).reshape([mesh.shape[name] for name in axes])
    others = [name for name in axes if name not in names]
    ranks = ranks.transpose([axes.index(name) for name in (*others, *names)])
    groups = ranks.reshape(-1, math.prod(mesh.shape[name] for name in names))
    return tuple(tuple(int(rank) for rank in group) for group in groups)


def call(
    target: str,
    results: Sequence[jax.ShapeDtypeStruct],
    where: Place,
    *operands: jax.Array,
    aliases: dict[int, int] | None = None,
    **attributes: bool | int | float | str,
) -> list[jax.Array]:
    """Calls collective operation ``target`` with ``where`` before the operands.

    Args:
      target: a name in ``_register.TARGETS``.
      results: shape and dtype of each result.
      where: the device's place; every device of the group must make the call.
      *operands: arrays, in the order of the handler's ``Arg``s after the place.
      aliases: numbers of results by the number of the operand (the place not counted) whose memory
        they take.
      **attributes: the handler's ``Attr``s.

    Returns:
      The results, varying over every axis that an operand or the place varies over.
    """
    _register.library()
    aligned = _register.align(where.index, *operands)
    outputs = _collective_p.bind(
        *aligned,
        target=target,
        results=tuple(
            jax.core.ShapedArray(result.shape, jnp.dtype(result.dtype)) for result in results
        ),
        aliases=tuple((aliases or {}).items()),
        attributes=(
            *attributes.items(),
            ("ranks", where.ranks),
            ("processes", where.processes),
        ),
    )
    return [_register.vary_as(output, aligned[0]) for output in outputs]


def gather(x: jax.Array, axis_name: AxisName, *, processes: bool = False) -> jax.Array:
    """[ranks, ...] of every rank's x along a mesh axis, or several; inside ``jax.shard_map``, not differentiable.

    Between processes by the engine, whose errors name a rank that does not come; else by XLA.
    """
    if not processes:
        return jax.lax.all_gather(x, axis_name)
    where = place(axis_name, processes=True)
    result = jax.ShapeDtypeStruct((where.ranks, *x.shape), x.dtype)
    return call("gather_over_ranks", [result], where, x)[0]


def count(x: Any, axis_name: AxisName, *, processes: bool = False) -> Any:
    """The sum over the ranks of arrays of whole numbers, or a tree of them; otherwise as ``gather``."""
    if not processes:
        return jax.lax.psum(x, axis_name)

    def leaf(part: jax.Array) -> jax.Array:
        return jnp.sum(gather(part, axis_name, processes=True), axis=0, dtype=part.dtype)

    return jax.tree.map(leaf, x)


_collective_p = jax.extend.core.Primitive("anabranch_collective")
_collective_p.multiple_results = True


@_collective_p.def_abstract_eval
def _abstract(*operands: Any, results: tuple[Any, ...], **_: Any) -> tuple[Any, ...]:
    return results


@_collective_p.def_impl
def _evaluate(*operands: Any, target: str, **_: Any) -> None:
    raise RuntimeError(f"{target}: must be called under jax.jit, inside jax.shard_map")


def _lower(
    ctx: Any,
    *operands: Any,
    target: str,
    results: tuple[Any, ...],
    aliases: tuple[tuple[int, int], ...],
    attributes: tuple[tuple[str, Any], ...],
) -> Any:
    rule = jax.ffi.ffi_lowering(
        f"anabranch_{target}",
        # Keeps equal calls apart: XLA would merge them on the ground that they compute the same.
        has_side_effect=True,
        operand_output_aliases={operand + 1: result for operand, result in aliases},
    )
    encoded = {name: _register.encode(value) for name, value in attributes}
    # Channels are numbered per program, so the site is the same in every process that compiles it.
    site = _register.encode(ctx.module_context.new_channel())
    return rule(ctx, *operands, site=site, **encoded)


mlir.register_lowering(_collective_p, _lower, platform="cpu", cacheable=False)

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Makes JAX's own ragged operations run on the engine; the one file that uses private JAX names.

JAX lowers ``ragged_dot`` and ``ragged_dot_general`` through one primitive, whose transpose rules
bind the same primitive again. A lowering for platform ``cpu`` therefore serves every caller, and
its gradients, without a change to the caller's code. So it is for ``ragged_all_to_all``, which JAX
itself cannot run on CPU.
"""

from __future__ import annotations

import functools
import threading
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch import _processes
from anabranch.ops.expert_parallel.ragged_all_to_all import exchange
from anabranch.ops.ragged_dimensions import ragged_product, serves


def use_in_jax() -> Use:
    """From here on JAX's ``ragged_dot``, ``ragged_dot_general`` and ``ragged_all_to_all`` use the engine.

    Forward, reverse and forward-mode gradients, ``vmap`` and ``scan`` stay JAX's own; what changes
    is how the primitive is computed, on CPU. f32, bf16 and f16 products are served, all else is left
    to JAX; ``ragged_all_to_all`` takes any dtype. Negative group sizes, and sizes that add up to
    more than the rows, become errors. The environment variable ``ANABRANCH_USE_IN_JAX=1`` does the
    same when anabranch is imported.

    Compiled functions are forgotten (``jax.clear_caches``) at the first call and when the last
    ``with`` block ends, since they hold the other way of computing.

    Returns:
      A context manager that ends the effect of this call: ``with use_in_jax(): ...``. Without
      ``with`` the effect lasts.

    Raises:
      RuntimeError: this version of JAX lacks the names that this needs.
    """
    return Use()


class Use:
    """One use of the engine by JAX, active from construction until ``__exit__``."""

    _lock = threading.Lock()
    _active = 0

    def __init__(self) -> None:
        _register_lowering()
        _register_exchange()
        self._change(+1)

    def __enter__(self) -> Use:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._change(-1)

    @classmethod
    def is_active(cls) -> bool:
        """Whether at least one use has not ended."""
        return cls._active > 0

    @classmethod
    def _change(cls, by: int) -> None:
        with cls._lock:
            was_active = cls._active > 0
            cls._active += by
            if was_active != (cls._active > 0):
                jax.clear_caches()


def private_names() -> tuple[Any, Any, Any]:
    """JAX's primitive, its definition by other operations, and the module that registers rules.

    Raises:
      RuntimeError: this version of JAX does not have them.
    """
    try:
        from jax._src.interpreters import mlir
        from jax._src.lax import lax

        return lax.ragged_dot_general_p, lax._ragged_dot_general_impl, mlir
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"use_in_jax: jax {jax.__version__} has moved the names it needs: {error}"
        ) from error


@functools.cache
def _register_lowering() -> None:
    primitive, definition, mlir = private_names()
    by_jax = mlir.lower_fun(definition, multiple_results=False)  # JAX's own rule on CPU

    def lower(ctx: Any, lhs: Any, rhs: Any, group_sizes: Any, **params: Any) -> Any:
        result = ctx.avals_out[0]
        numbers = params["ragged_dot_dimension_numbers"]
        if not Use.is_active() or params["group_offset"] is not None:
            return by_jax(ctx, lhs, rhs, group_sizes, **params)
        if not serves(*ctx.avals_in[:2], result):
            return by_jax(ctx, lhs, rhs, group_sizes, **params)
        product = functools.partial(ragged_product, numbers=numbers, dtype=result.dtype)
        return mlir.lower_fun(product, multiple_results=False)(ctx, lhs, rhs, group_sizes)

    mlir.register_lowering(primitive, lower, platform="cpu")


def exchange_names() -> tuple[Any, Any, Any, Any, Any]:
    """JAX's primitive, its own lowering, its list of device groups, MLIR's types and operations, rules.

    Raises:
      RuntimeError: this version of JAX does not have them.
    """
    try:
        from jax._src.interpreters import mlir
        from jax._src.lax import parallel
        from jax._src.lib.mlir import ir
        from jax._src.lib.mlir.dialects import hlo

        own_rule = parallel._ragged_all_to_all_lowering
        return parallel.ragged_all_to_all_p, own_rule, parallel._replica_groups, (ir, hlo), mlir
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"use_in_jax: jax {jax.__version__} has moved the names it needs: {error}"
        ) from error


@functools.cache
def _register_exchange() -> None:
    primitive, by_jax, replica_groups, (ir, hlo), mlir = exchange_names()
    scalar = jax.core.ShapedArray((), np.dtype("int32"))

    def lower(ctx: Any, *operands: Any, axis_name: Any, axis_index_groups: Any) -> Any:
        if not Use.is_active():
            params = {"axis_name": axis_name, "axis_index_groups": axis_index_groups}
            return by_jax(ctx, *operands, **params)
        groups = np.asarray(
            replica_groups(ctx.module_context.axis_context, axis_name, axis_index_groups)
        )
        processes = _processes.between()
        # Device -> (rank in its group, number of the group; between processes all groups of this
        # partition have one).
        places = np.zeros((groups.size, 2), np.int32)
        for number, group in enumerate(groups):
            places[group] = [(rank, number) for rank in range(len(group))]
        if processes:
            partition = tuple(tuple(int(rank) for rank in group) for group in groups)
            places[:, 1] = _processes.number_of(partition)

        def body(device: jax.Array, operand: jax.Array, output: jax.Array, *rest: jax.Array) -> Any:
            vectors = (vector.astype(jnp.int32) for vector in rest)
            place = jnp.asarray(places)[device]
            return exchange((groups.shape[1], processes), place, operand, output, *vectors)

        i32 = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
        device = hlo.convert(i32, hlo.partition_id())
        plain = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in ctx.avals_in]
        result = [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in ctx.avals_out]
        inner = ctx.replace(avals_in=[scalar, *plain], avals_out=result)
        return mlir.lower_fun(body, multiple_results=True)(inner, device, *operands)

    mlir.register_lowering(primitive, lower, platform="cpu", cacheable=False)

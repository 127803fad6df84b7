# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""A layer whose rows travel in waves of experts: work on one wave while the next ones are under way.

Wave w is the w-th group of each rank's experts, and its rows have buffers of their own, so that nothing but
its own exchange stands before its products. All results have the bits of one wave: an expert has all its rows in one
product, and the sum of a token's rows is taken once, over all waves, in ascending expert order.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from anabranch import _register
from anabranch.ops.expert_parallel import calls
from anabranch.ops.expert_parallel.calls import ExpertParallelPlan, Load, Options, Wave
from anabranch.ops.expert_parallel.moe_ffn_rows import rows_backward, rows_forward


class WaveOptions(NamedTuple):
    """What a layer needs to know beside its arrays.

    Attributes:
      call: of the exchanges, weights included.
      activation: index into ``reference.ACTIVATIONS``.
      waves: room of each wave's buffers.
      borders: its experts are ``borders[w]`` to ``borders[w + 1] - 1`` of a rank's; some have none.
    """

    call: Options
    activation: int
    waves: tuple[Wave, ...]
    borders: tuple[int, ...]


def moe_ffn_in_waves(
    options: WaveOptions, plan: ExpertParallelPlan, x: jax.Array, *operands: jax.Array
) -> jax.Array:
    """From x [T, H], weights f32 [T, k] and a rank's w_gate, w_up, w_down: y [T, H]."""
    arrays = _register.align(plan.place, plan.words, plan.group_offsets, x, *operands)
    return _in_waves(options, *arrays)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _in_waves(options: WaveOptions, *arrays: jax.Array) -> jax.Array:
    return _forward(options, *arrays, save=False)[0]


def _forward(
    options: WaveOptions, *arrays: jax.Array, save: bool = True
) -> tuple[jax.Array, tuple[Any, ...]]:
    place, words, offsets, x, weights, *matrices = arrays
    # All exchanges first: each then has its buffers from the beginning, and none waits for products.
    loaded = calls.load(options.call, x)
    sent = [_send(options, wave, place, words, loaded, weights) for wave in options.waves]
    results, saved = [], []
    for wave, (rows, row_weights) in zip(options.waves, sent, strict=True):
        if _is_empty(options, wave):
            results += [rows, row_weights]
            saved.append(None)
            continue
        operands = (rows, row_weights, *matrices, _offsets(options, wave, offsets))
        first = options.borders[wave.index]
        out, gate_up = rows_forward(options.activation, save, *operands, first_expert=first)
        results += [out, jnp.zeros(0, jnp.float32)]
        saved.append((rows, row_weights, gate_up))
    unweighted = options.call._replace(weighted=False)
    y = calls.fetch(unweighted, place, words, *_register.align(place, *results)[1:])[0]
    return y, (place, words, offsets, tuple(matrices), saved)


def _backward(options: WaveOptions, kept: tuple[Any, ...], y_grad: jax.Array) -> tuple[Any, ...]:
    place, words, offsets, matrices, saved = kept
    unweighted = options._replace(call=options.call._replace(weighted=False))
    none = _register.vary_as(jnp.zeros(0, jnp.float32), place)
    loaded = calls.load(options.call, y_grad)
    sent = [_send(unweighted, wave, place, words, loaded, none)[0] for wave in options.waves]
    results: list[jax.Array] = []
    matrix_grads: tuple[jax.Array, ...] = ()
    for wave, out_grad, of_wave in zip(options.waves, sent, saved, strict=True):
        if of_wave is None:
            results += [out_grad, none]
            continue
        rows, row_weights, gate_up = of_wave
        rows_grad, row_weights_grad, *matrix_grads = rows_backward(
            options.activation,
            (rows, row_weights, *matrices, _offsets(options, wave, offsets)),
            gate_up,
            out_grad,
            first_expert=options.borders[wave.index],
            before=tuple(matrix_grads),
        )
        results += [rows_grad, row_weights_grad]
    x_grad, weights_grad = calls.fetch(options.call, place, words, *results)
    return (None, None, None, x_grad, weights_grad, *matrix_grads)


_in_waves.defvjp(_forward, _backward)


def _send(
    options: WaveOptions,
    wave: Wave,
    place: jax.Array,
    words: jax.Array,
    loaded: Load,
    weights: jax.Array,
) -> list[jax.Array]:
    if not _is_empty(options, wave):
        return calls.send(options.call, wave, place, words, loaded, weights)
    empty = (jnp.zeros((0, loaded.hidden), loaded.dtype), jnp.zeros(0, jnp.float32))
    return [_register.vary_as(array, place) for array in empty]


def _is_empty(options: WaveOptions, wave: Wave) -> bool:
    return options.borders[wave.index] == options.borders[wave.index + 1]


def _offsets(options: WaveOptions, wave: Wave, offsets: jax.Array) -> jax.Array:
    """First row of each of the wave's experts in its buffer, and the number of its rows."""
    first, end = options.borders[wave.index : wave.index + 2]
    return offsets[first : end + 1] - offsets[first]

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Rematerialisation that happens when it is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from anabranch import _register


def remat(
    function: Callable[..., Any], policy: Callable[..., bool] | None = None
) -> Callable[..., Any]:
    """Returns `function` with a backward pass that computes it a second time, all but what `policy` keeps.

    Like `jax.checkpoint`, whose policies it takes (None keeps the arguments alone). XLA's CPU compiler drops
    the barrier that `jax.checkpoint` puts before the second computation, and then schedules that of all layers
    before the backward pass of the last: the time is spent and no memory is saved. Here the second
    computation depends on the gradient that enters the backward pass.

    The first result must be the array on which the next block works, and among the kept ones those of its
    shape are what the second computation starts from. Reverse mode, first order.
    """

    def run(*arguments: Any) -> Any:
        # What the function closes over and is differentiated by becomes an argument.
        converted, closed_over = jax.closure_convert(function, *arguments)
        return _remat(converted, policy)(*arguments, *closed_over)

    return run


def _remat(function: Callable[..., Any], policy: Any) -> Callable[..., Any]:
    @jax.custom_vjp
    def run(*arguments: Any) -> Any:
        return function(*arguments)

    def forward(*arguments: Any) -> tuple[Any, Any]:
        return jax.vjp(jax.checkpoint(function, policy=policy, prevent_cse=False), *arguments)

    def backward(pullback: Any, gradients: Any) -> Any:
        kept, structure = jax.tree.flatten(pullback)
        until = jax.tree.leaves(gradients)[0]
        held = [hold(x, until) if x.shape == until.shape else x for x in kept]
        return jax.tree.unflatten(structure, held)(gradients)

    run.defvjp(forward, backward)
    return run


@jax.custom_vjp
def hold(x: jax.Array, until: jax.Array) -> jax.Array:
    """Returns x [...], which exists once `until` [...] does: what is computed from it is computed after that.

    Without a copy where x is needed nowhere later under another shape. Its gradient is that of x.
    """
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return _register.call("hold", like, x, until, aliases={0: 0})


hold.defvjp(lambda x, until: (hold(x, until), None), lambda _, grad: (grad, None))

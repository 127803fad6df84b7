# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Layers whose experts are spread over ranks, for tests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import anabranch as ab

SPEC = PartitionSpec("expert")


def mesh_of(ranks):
    return Mesh(np.array(jax.devices()[:ranks]), ("expert",))


def case(tokens=24, hidden=8, width=6, experts=8, topk=3, dtype=jnp.bfloat16, seed=0, ids=None):
    rng = np.random.default_rng(seed)
    if ids is None:
        ids = np.argsort(rng.random((tokens, experts)), 1)[:, :topk]
        ids[rng.random(ids.shape) < 0.1] = -1
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), dtype)  # noqa: E731
    arrays = (
        draw(tokens, hidden),
        jnp.asarray(rng.random(np.shape(ids)), jnp.float32),
        draw(experts, hidden, width),
        draw(experts, hidden, width),
        draw(experts, width, hidden),
    )
    return jnp.asarray(ids, jnp.int32), arrays, draw(tokens, hidden)


def layer(x, ids, weights, *experts, ep=None):
    return ab.moe_ffn(x, ab.Routing(ids, weights, None), *experts, expert_parallel=ep)


def sharded(ranks, ids, ep, body=layer):
    mapped = jax.shard_map(
        functools.partial(body, ep=ep), mesh=mesh_of(ranks), in_specs=(SPEC,) * 6, out_specs=SPEC
    )
    return lambda x, *rest: mapped(x, ids, *rest)


def with_gradients(function, y_grad):
    @jax.jit
    def run(*arrays):
        y, pullback = jax.vjp(function, *arrays)
        return y, *pullback(y_grad)

    return run


def assert_same_bits(actual, expected):
    assert len(actual) == len(expected)
    for name, have, want in zip("y x weights gate up down".split(), actual, expected, strict=False):
        assert (have.dtype, have.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(
            np.asarray(have).view(np.uint8), np.asarray(want).view(np.uint8), err_msg=name
        )

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The expert layer on one device and over two of this process: rows ``moe_layer_*`` of suite ``ep``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anabranch import engine
from anabranch.bench.timing import measure_in_turn
from anabranch.ops.expert_parallel import ExpertParallel
from anabranch.ops.moe_ffn import moe_ffn
from anabranch.ops.router import Routing

RANKS, TOKENS, HIDDEN, WIDTH, EXPERTS, TOPK = 2, 2048, 1024, 704, 16, 6
_WAVES = (1, 4)
_ROUNDS = 9


def rows() -> Iterator[dict[str, Any]]:
    """Rows ``moe_layer_1_device``, ``moe_layer_2_devices``, ``moe_layer_2_devices_4_waves``.

    Forward and gradient of the same tokens on all of the machine's cores, timed in turn;
    ``share_of_one_device`` is the time of the first over that of the row.
    """
    ids, arrays, y_grad = _case()
    steps = {"moe_layer_1_device": _step(None, ids, y_grad)}
    for waves in _WAVES:
        name = f"moe_layer_{RANKS}_devices" + (f"_{waves}_waves" if waves > 1 else "")
        ep = ExpertParallel(EXPERTS, TOPK, waves=waves)
        steps[name] = _step(ep, ids, y_grad)
    expected = steps["moe_layer_1_device"](*arrays)
    for name, step in steps.items():
        if not all(map(_same_bits, expected, step(*arrays))):
            raise RuntimeError(f"bench: {name} differs from one device")
    del expected

    def run(step: Callable[..., Any]) -> None:
        jax.block_until_ready(step(*arrays))

    runs = [functools.partial(run, step) for step in steps.values()]
    timings = measure_in_turn(runs, rounds=_ROUNDS)
    for name, timing in zip(steps, timings, strict=True):
        yield {
            "name": name,
            "shape": {"T": TOKENS, "H": HIDDEN, "F": WIDTH, "E": EXPERTS, "k": TOPK},
            "dtype": "bfloat16",
            "threads": engine.num_threads(),
            "flops": 18.0 * TOKENS * TOPK * HIDDEN * WIDTH,
            "max_error": 0.0,  # every bit was compared
            "share_of_one_device": timings[0].seconds / timing.seconds,
            "timing": timing,
        }


def _case() -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(1 << 16) - 1).astype(np.float32)  # odd period: no pattern

    def array(*shape: int, scale: float = 1.0) -> jax.Array:
        return jnp.asarray(np.resize(draws * scale, shape), jnp.bfloat16)

    ids = np.argsort(rng.random((TOKENS, EXPERTS)), axis=1)[:, :TOPK].astype(np.int32)
    weights = jnp.asarray(rng.dirichlet(np.ones(TOPK), TOKENS), jnp.float32)
    scale = HIDDEN**-0.5
    matrices = [array(EXPERTS, *shape, scale=scale) for shape in ((HIDDEN, WIDTH),) * 2]
    matrices.append(array(EXPERTS, WIDTH, HIDDEN, scale=scale))
    arrays = (array(TOKENS, HIDDEN), weights, *matrices)
    return jnp.asarray(ids), arrays, array(TOKENS, HIDDEN)


def _step(ep: ExpertParallel | None, ids: jax.Array, y_grad: jax.Array) -> Callable[..., Any]:
    """Jitted (x, weights, w_gate, w_up, w_down) -> (y, and a gradient of each), over the group or on one device."""

    def step(ids: jax.Array, y_grad: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        def forward(x: jax.Array, weights: jax.Array, *matrices: jax.Array) -> jax.Array:
            return moe_ffn(x, Routing(ids, weights, None), *matrices, expert_parallel=ep)

        y, pullback = jax.vjp(forward, *arrays)
        return y, *pullback(y_grad)

    if ep is None:
        return jax.jit(functools.partial(step, ids, y_grad))
    mesh = Mesh(np.array(jax.devices()[:RANKS]), (ep.axis_name,))
    spec = PartitionSpec(ep.axis_name)
    mapped = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(spec,) * 7, out_specs=(spec,) * 6))
    placed: dict[int, jax.Array] = {}

    def run(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        for array in (ids, y_grad, *arrays):
            if id(array) not in placed:
                placed[id(array)] = jax.device_put(array, NamedSharding(mesh, spec))
        return mapped(*(placed[id(array)] for array in (ids, y_grad, *arrays)))

    return run


def _same_bits(left: jax.Array, right: jax.Array) -> bool:
    return np.asarray(left).tobytes() == np.asarray(right).tobytes()

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Suite ``ep``: dispatch and combine between devices of this process, beside the classic way.

``copied_bytes`` of a row is what copying its payload would read and write, the payload being every
routed row once; ``share_of_copy`` is the time that this takes at the measured bandwidth over the
time of the row. The classic way packs rows by peer, exchanges, and unpacks by expert.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anabranch import engine
from anabranch.bench.timing import MIN_REPEATS, observe
from anabranch.errors import UsageError
from anabranch.ops.expert_parallel import ExpertParallel
from anabranch.ops.expert_parallel.ragged_all_to_all import ragged_all_to_all
from anabranch.ops.ragged_plan import RaggedPlan
from anabranch.ops.rows import combine_rows, gather_rows

RANKS, TOKENS, HIDDEN, EXPERTS, TOPK = 2, 2048, 7168, 64, 8
_SPEC = PartitionSpec("expert")
# A loop inside one program: buffers are then paid for once, as in a training step. The time of a
# call is the difference between a long and a short loop.
_SHORT, _LONG = 1, 5


def rows() -> Iterator[dict[str, Any]]:
    """Rows ``dispatch_inprocess``, ``combine_inprocess``, ``ragged_all_to_all``, ``*_classic``."""
    try:
        jax.config.update("jax_num_cpu_devices", RANKS)
    except RuntimeError as error:
        raise UsageError(
            f"bench: suite ep needs {RANKS} devices from the start: {error}"
        ) from error
    case = _Case()
    dispatched = jax.block_until_ready(case.mapped(case.dispatch_once)(case.x, case.ids))
    classic = jax.block_until_ready(case.mapped(case.classic_dispatch)(case.x, *case.classic))
    case.check(dispatched, classic)
    for name, body, inputs in (
        ("dispatch_inprocess", case.dispatch, (case.x, case.ids)),
        ("dispatch_classic", case.classic_dispatch, (case.x, *case.classic)),
        ("combine_inprocess", case.combine, (dispatched, case.ids)),
        ("combine_classic", case.classic_combine, (dispatched, *case.classic)),
        ("ragged_all_to_all", case.exchange, (classic, *case.classic)),
    ):
        timing = observe(functools.partial(case.repeat, body, inputs))
        yield {
            "name": name,
            "shape": {"ranks": RANKS, "T": TOKENS, "H": HIDDEN, "E": EXPERTS, "k": TOPK},
            "dtype": "bfloat16",
            "threads": engine.num_threads(),
            "copied_bytes": 2.0 * RANKS * TOKENS * TOPK * HIDDEN * 2,
            "max_error": 0.0,  # case.check compared every bit
            "timing": timing,
        }


class _Case:
    """Random routing of both ranks' tokens, and what the classic way derives from it."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.ep = ExpertParallel(num_experts=EXPERTS, topk=TOPK, overflow="error")
        self.mesh = Mesh(np.array(jax.devices()[:RANKS]), ("expert",))
        ids = np.argsort(rng.random((RANKS, TOKENS, EXPERTS)), axis=2)[:, :, :TOPK]
        self.ids_host = ids.astype(np.int32)
        self.ids = self._put(self.ids_host.reshape(-1, TOPK))
        draws = rng.normal(size=(1 << 16) - 1).astype(np.float32)  # odd period: no pattern
        x = np.resize(draws, (RANKS * TOKENS, HIDDEN))
        self.x = self._put(x.astype(jnp.bfloat16))
        self.capacity = self.ep.static_capacity(TOKENS, RANKS)
        self.classic = self._classic_tables()

    def _put(self, array: Any) -> jax.Array:
        return jax.device_put(array, NamedSharding(self.mesh, _SPEC))

    def mapped(self, body: Callable[..., Any]) -> Callable[..., Any]:
        def local(*args: jax.Array) -> jax.Array:
            return body(*args)

        def run(*args: jax.Array) -> jax.Array:
            specs = (_SPEC,) * len(args)
            return jax.shard_map(local, mesh=self.mesh, in_specs=specs, out_specs=_SPEC)(*args)

        return jax.jit(run)

    def repeat(self, body: Callable[..., Any], inputs: tuple[jax.Array, ...]) -> list[float]:
        """Seconds of one call, at least ``MIN_REPEATS`` times."""

        def loop(count: int) -> Callable[..., Any]:
            def local(*args: jax.Array) -> jax.Array:
                # Each round's result is used, and each round waits for the one before.
                def step(_: int, carry: jax.Array) -> jax.Array:
                    first, *rest = jax.lax.optimization_barrier((*args, carry))[:-1]
                    return body(first, *rest)[:1]

                start = jnp.zeros((1, HIDDEN), jnp.bfloat16)
                start = jax.lax.pcast(start, "expert", to="varying")
                return jax.lax.fori_loop(0, count, step, start)

            return self.mapped(local)

        runs = [loop(_SHORT), loop(_LONG)]
        seconds: list[float] = []
        for attempt in range(MIN_REPEATS + 1):
            times = []
            for run in runs:
                start = time.perf_counter()
                jax.block_until_ready(run(*inputs))
                times.append(time.perf_counter() - start)
            if attempt > 0:  # the first compiles
                seconds.append(max((times[1] - times[0]) / (_LONG - _SHORT), 1e-9))
        return seconds

    def dispatch_once(self, x: jax.Array, ids: jax.Array) -> jax.Array:
        plan = self.ep.prepare(ids)
        used = jnp.arange(self.capacity)[:, None] < plan.group_offsets[-1]
        return jnp.where(used, self.ep.dispatch(plan, x), 0)

    def dispatch(self, x: jax.Array, ids: jax.Array) -> jax.Array:
        return self.ep.dispatch(self.ep.prepare(ids), x)

    def combine(self, rows: jax.Array, ids: jax.Array) -> jax.Array:
        return self.ep.combine(self.ep.prepare(ids), rows)

    def classic_dispatch(self, x: jax.Array, *tables: jax.Array) -> jax.Array:
        pack, _, unpack, _, vectors = _unflatten(tables)
        packed = gather_rows(x, pack)
        received = ragged_all_to_all(packed, self._room(), *vectors[:4], axis_name="expert")
        return gather_rows(received, unpack)

    def classic_combine(self, rows: jax.Array, *tables: jax.Array) -> jax.Array:
        _, home, _, repack, vectors = _unflatten(tables)
        packed = gather_rows(rows, repack)
        back = (vectors[4], vectors[3], vectors[5], vectors[1])
        received = ragged_all_to_all(
            packed, jnp.zeros((TOKENS * TOPK, HIDDEN), packed.dtype), *back, axis_name="expert"
        )
        return combine_rows(received, home)

    def exchange(self, rows: jax.Array, *tables: jax.Array) -> jax.Array:
        vectors = _unflatten(tables)[4]
        return ragged_all_to_all(
            rows[: TOKENS * TOPK], self._room(), *vectors[:4], axis_name="expert"
        )

    def _room(self) -> jax.Array:
        return jax.lax.empty((self.capacity, HIDDEN), jnp.bfloat16)

    def _classic_tables(self) -> tuple[jax.Array, ...]:
        local = EXPERTS // RANKS
        counts = np.stack([np.bincount(ids.ravel(), minlength=EXPERTS) for ids in self.ids_host])
        send = counts.reshape(RANKS, RANKS, local).sum(2)  # [from, to]
        inputs = np.cumsum(send, 1) - send
        outputs = np.cumsum(send, 0) - send
        parts: list[list[np.ndarray]] = []
        for rank in range(RANKS):
            order = np.argsort(self.ids_host[rank].ravel(), kind="stable")
            slot_row = np.empty(TOKENS * TOPK, np.int32)
            slot_row[order] = np.arange(TOKENS * TOPK, dtype=np.int32)
            # Received rows lie by (source, expert); experts want (expert, source).
            mine = counts[:, rank * local : (rank + 1) * local]
            starts = (np.cumsum(mine.ravel()) - mine.ravel()).reshape(mine.shape)
            pieces = [
                np.arange(starts[s, e], starts[s, e] + mine[s, e])
                for e in range(local)
                for s in range(RANKS)
            ]
            unpack = np.full(self.capacity, -1, np.int32)
            used = int(mine.sum())
            unpack[:used] = np.concatenate(pieces)
            repack = np.full(self.capacity, -1, np.int32)
            repack[unpack[:used]] = np.arange(used, dtype=np.int32)
            # On the way back the offsets of the two directions change places.
            parts.append(
                [
                    (order // TOPK).astype(np.int32),
                    slot_row.reshape(TOKENS, TOPK),
                    unpack,
                    repack,
                    inputs[rank],
                    send[rank],
                    outputs[rank],
                    send[:, rank],
                    outputs[:, rank],
                    inputs[:, rank],
                ]
            )
        return tuple(
            self._put(np.concatenate(column).astype(np.int32))
            for column in zip(*parts, strict=True)
        )

    def check(self, dispatched: jax.Array, classic: jax.Array) -> None:
        same = jax.jit(lambda a, b: (a == b).all())(dispatched, classic)
        ours = self.mapped(self.combine)(dispatched, self.ids)
        theirs = self.mapped(self.classic_combine)(dispatched, *self.classic)
        if not same or not (np.asarray(ours) == np.asarray(theirs)).all():
            raise RuntimeError("bench: dispatch or combine differs from the classic way")


def _unflatten(tables: tuple[jax.Array, ...]) -> tuple[Any, ...]:
    row_token, slot_row, unpack, repack, *vectors = tables
    none = jnp.zeros(0, jnp.int32)

    def plan(rows: jax.Array, slots: jax.Array) -> RaggedPlan:
        return RaggedPlan(none, none, rows, slots)

    def moved(rows: jax.Array) -> RaggedPlan:
        return plan(rows, jnp.zeros((rows.shape[0], 0), jnp.int32))

    home = plan(row_token, slot_row)
    return home, home, moved(unpack), moved(repack), vectors

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Suite ``ep``: dispatch and combine between devices of this process, beside the classic way.

``copied_bytes`` of a row is what copying its payload would read and write, the payload being every
routed row once; ``copy_seconds`` is the time of such a copy past the caches, which takes turns with the
row, and ``share_of_copy`` that over the time of the row. The classic way packs rows by peer, exchanges, and
unpacks by expert.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anabranch import engine
from anabranch.bench.timing import MIN_REPEATS, Timing, observe
from anabranch.errors import UsageError
from anabranch.ops.expert_parallel import ExpertParallel, ExpertParallelPlan
from anabranch.ops.expert_parallel.ragged_all_to_all import ragged_all_to_all
from anabranch.ops.ragged_plan import RaggedPlan
from anabranch.ops.rows import combine_rows, gather_rows

RANKS, TOKENS, HIDDEN, EXPERTS, TOPK = 2, 2048, 7168, 64, 8
_SPEC = PartitionSpec("expert")
# A loop inside one program: buffers are then paid for once, as in a training step. The time of a
# call is the difference between a long and a short loop.
_SHORT, _LONG = 1, 5


def rows() -> Iterator[dict[str, Any]]:
    """Rows ``dispatch_inprocess``, ``combine_inprocess``, ``ragged_all_to_all``, ``*_classic``, ``*_mpi``."""
    try:
        jax.config.update("jax_num_cpu_devices", RANKS)
    except RuntimeError as error:
        raise UsageError(
            f"bench: suite ep needs {RANKS} devices from the start: {error}"
        ) from error
    case = Case(jax.devices()[:RANKS])
    plan = jax.block_until_ready(case.mapped(case.plan)(case.ids))
    dispatched = jax.block_until_ready(case.mapped(case.dispatch_once)(case.x, *plan))
    classic_dispatch = case.once(case.classic_dispatch, case.room)
    classic = jax.block_until_ready(classic_dispatch(case.x, *case.classic))
    case.check(dispatched, classic, plan)
    home = TOKENS * TOPK
    for name, body, inputs, room in (
        ("dispatch_inprocess", case.dispatch, (case.x, *plan), 0),
        ("dispatch_classic", case.classic_dispatch, (case.x, *case.classic), case.room),
        ("combine_inprocess", case.combine, (dispatched, *plan), 0),
        ("combine_classic", case.classic_combine, (classic, *case.classic), home),
        ("ragged_all_to_all", case.exchange, (classic, *case.classic), case.room),
    ):
        copies: list[float] = []
        timing = observe(functools.partial(case.repeat, body, inputs, room, copies))
        yield row(name, timing, statistics.median(copies))
    from anabranch.bench import ep_layer, ep_processes, ep_waves

    yield from ep_layer.rows()
    yield from ep_processes.rows()
    yield from ep_waves.rows()


def row(name: str, timing: Timing, copy_seconds: float) -> dict[str, Any]:
    """A row of this suite."""
    return {
        "name": name,
        "shape": {"ranks": RANKS, "T": TOKENS, "H": HIDDEN, "E": EXPERTS, "k": TOPK},
        "dtype": "bfloat16",
        "threads": engine.num_threads(),
        "copied_bytes": 2.0 * RANKS * TOKENS * TOPK * HIDDEN * 2,
        "copy_seconds": copy_seconds,
        "max_error": 0.0,  # the case compared every bit
        "timing": timing,
    }


def payload_copy(threads: int) -> Callable[[], float]:
    """A function that copies one rank's payload past the caches and returns the seconds."""
    payload = TOKENS * TOPK * HIDDEN * 2
    # Arrays of JAX: in memory like that of what is compared.
    source, target = (jax.block_until_ready(jnp.full(payload, i, jnp.int8)) for i in (1, 2))

    def copy() -> float:
        addresses = (array.unsafe_buffer_pointer() for array in (source, target))
        return engine.time_stream_copy(*addresses, payload, threads)

    copy()
    return copy


class Case:
    """Random routing of both ranks' tokens, and what the classic way derives from it."""

    def __init__(self, devices: list[jax.Device]) -> None:
        rng = np.random.default_rng(0)
        self.ep = ExpertParallel(num_experts=EXPERTS, topk=TOPK, overflow="error")
        self.mesh = Mesh(np.array(devices), ("expert",))
        ids = np.argsort(rng.random((RANKS, TOKENS, EXPERTS)), axis=2)[:, :, :TOPK]
        self.ids_host = ids.astype(np.int32)
        self.ids = self._put(self.ids_host.reshape(-1, TOPK))
        draws = rng.normal(size=(1 << 16) - 1).astype(np.float32)  # odd period: no pattern
        self.x_host = np.resize(draws, (RANKS * TOKENS, HIDDEN)).astype(jnp.bfloat16)
        self.x = self._put(self.x_host)
        self.capacity = self.ep.static_capacity(TOKENS, RANKS)
        # The rows of the fuller rank: the classic way gets no row more to copy or to clear.
        local = EXPERTS // RANKS
        owners = np.bincount(self.ids_host.ravel() // local, minlength=RANKS)
        self.room = int(owners.max())
        self.classic = self._classic_arrays()

    def _put(self, array: Any) -> jax.Array:
        sharding = NamedSharding(self.mesh, _SPEC)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def mapped(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """A function of one rank's part, on all ranks."""

        def local(*args: jax.Array) -> jax.Array:
            return body(*args)

        def run(*args: jax.Array) -> jax.Array:
            specs = (_SPEC,) * len(args)
            return jax.shard_map(local, mesh=self.mesh, in_specs=specs, out_specs=_SPEC)(*args)

        return jax.jit(run)

    def repeat(
        self,
        body: Callable[..., Any],
        inputs: tuple[jax.Array, ...],
        room: int,
        copies: list[float],
    ) -> list[float]:
        """Seconds of one call, ``MIN_REPEATS`` times; in turn with copies of all payload, into ``copies``."""
        call = self.timer(body, inputs, room)
        copy = payload_copy(engine.num_threads())
        seconds = []
        for _ in range(MIN_REPEATS):
            seconds.append(call())
            copies.append(RANKS * copy())
        return seconds

    def timer(
        self, body: Callable[..., Any], inputs: tuple[jax.Array, ...], room: int = 0
    ) -> Callable[[], float]:
        """A function that returns the seconds of one call; compiled and run once beforehand.

        A body that receives into a buffer of ``room`` rows takes it as its last argument and returns it
        after its result: it goes from round to round, as a program hands on a buffer that it has.
        """

        def loop(count: int) -> Callable[..., Any]:
            def local(*args: jax.Array) -> jax.Array:
                # Each round's result is used, and each round waits for the one before.
                def step(_: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                    *given, _, buffer = jax.lax.optimization_barrier((*args, *carry))
                    if not room:
                        return body(*given)[:1], buffer
                    result, buffer = body(*given, buffer)
                    return result[:1], buffer

                start = (_room(1), _room(room))
                return jax.lax.fori_loop(0, count, step, start)[0]

            return self.mapped(local)

        runs = [loop(_SHORT), loop(_LONG)]

        def call() -> float:
            times = []
            for run in runs:
                start = time.perf_counter()
                jax.block_until_ready(run(*inputs))
                times.append(time.perf_counter() - start)
            return max((times[1] - times[0]) / (_LONG - _SHORT), 1e-9)

        call()
        return call

    def plan(self, ids: jax.Array) -> tuple[jax.Array, ...]:
        """This rank's plan, as arrays that ``shard_map`` can hand on."""
        plan = self.ep.prepare(ids)
        return plan._replace(needed=plan.needed[None], dropped=plan.dropped[None])

    def dispatch_once(self, x: jax.Array, *parts: jax.Array) -> jax.Array:
        """This rank's rows, zeros where there are none."""
        plan = _plan(parts)
        used = jnp.arange(self.capacity)[:, None] < plan.group_offsets[-1]
        return jnp.where(used, self.ep.dispatch(plan, x), 0)

    def dispatch(self, x: jax.Array, *parts: jax.Array) -> jax.Array:
        """This rank's rows."""
        return self.ep.dispatch(_plan(parts), x)

    def combine(self, rows: jax.Array, *parts: jax.Array) -> jax.Array:
        """What comes back of this rank's tokens."""
        return self.ep.combine(_plan(parts), rows)

    def classic_dispatch(self, x: jax.Array, *tables: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Pack, exchange, unpack; the last of ``tables`` is what is received into."""
        *tables, buffer = tables
        pack, _, unpack, _, vectors = _unflatten(tables)
        packed = gather_rows(x, pack)
        received = ragged_all_to_all(packed, buffer, *vectors[:4], axis_name="expert")
        return gather_rows(received, unpack), received

    def classic_combine(self, rows: jax.Array, *tables: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The way back of it."""
        *tables, buffer = tables
        _, home, _, repack, vectors = _unflatten(tables)
        packed = gather_rows(rows, repack)
        back = (vectors[4], vectors[3], vectors[5], vectors[1])
        received = ragged_all_to_all(packed, buffer, *back, axis_name="expert")
        return combine_rows(received, home), received

    def exchange(self, rows: jax.Array, *tables: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The exchange alone."""
        *tables, buffer = tables
        vectors = _unflatten(tables)[4]
        received = ragged_all_to_all(rows, buffer, *vectors[:4], axis_name="expert")
        return received, received

    def once(self, body: Callable[..., Any], room: int) -> Callable[..., Any]:
        """The result alone of a body that receives into ``room`` rows."""
        return self.mapped(lambda *args: body(*args, _room(room))[0])

    def classic_tables(self, rank: int) -> list[np.ndarray]:
        """What one rank knows of the classic way.

        Returns:
          The token of each packed row, each slot's packed row [T, k], the received row of each row in
          expert order and the reverse of it (-1 past the rows in use), and six vectors by rank: where
          the rows for it begin, how many they are, where it puts them, how many come from it, and where
          those begin here and there.
        """
        local = EXPERTS // RANKS
        counts = np.stack([np.bincount(ids.ravel(), minlength=EXPERTS) for ids in self.ids_host])
        send = counts.reshape(RANKS, RANKS, local).sum(2)  # [from, to]
        inputs = np.cumsum(send, 1) - send
        outputs = np.cumsum(send, 0) - send
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
        unpack = np.full(self.room, -1, np.int32)
        used = int(mine.sum())
        unpack[:used] = np.concatenate(pieces)
        repack = np.full(self.room, -1, np.int32)
        repack[unpack[:used]] = np.arange(used, dtype=np.int32)
        # On the way back the offsets of the two directions change places.
        tables = [
            order // TOPK,
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
        return [table.astype(np.int32) for table in tables]

    def _classic_arrays(self) -> tuple[jax.Array, ...]:
        parts = [self.classic_tables(rank) for rank in range(RANKS)]
        return tuple(self._put(np.concatenate(column)) for column in zip(*parts, strict=True))

    def check(self, dispatched: jax.Array, classic: jax.Array, plan: tuple[jax.Array, ...]) -> None:
        """Compares every bit with the classic way."""
        equal = self.mapped(lambda a, b: (a[: self.room] == b).all()[None])
        same = np.asarray(equal(dispatched, classic)).all()
        ours = self.mapped(self.combine)(dispatched, *plan)
        theirs = self.once(self.classic_combine, TOKENS * TOPK)(classic, *self.classic)
        if not same or not (np.asarray(ours) == np.asarray(theirs)).all():
            raise RuntimeError("bench: dispatch or combine differs from the classic way")


def _room(rows: int) -> jax.Array:
    return jax.lax.pcast(jnp.zeros((rows, HIDDEN), jnp.bfloat16), "expert", to="varying")


def _plan(parts: tuple[jax.Array, ...]) -> ExpertParallelPlan:
    plan = ExpertParallelPlan(*parts)
    return plan._replace(needed=plan.needed[0], dropped=plan.dropped[0])


def _unflatten(tables: tuple[jax.Array, ...]) -> tuple[Any, ...]:
    row_token, slot_row, unpack, repack, *vectors = tables
    none = jnp.zeros(0, jnp.int32)

    def plan(rows: jax.Array, slots: jax.Array) -> RaggedPlan:
        return RaggedPlan(none, none, rows, slots)

    def moved(rows: jax.Array) -> RaggedPlan:
        return plan(rows, jnp.zeros((rows.shape[0], 0), jnp.int32))

    home = plan(row_token, slot_row)
    return home, home, moved(unpack), moved(repack), vectors

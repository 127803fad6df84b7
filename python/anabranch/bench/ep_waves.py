# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""How much of a slow dispatch waves hide, between two processes: rows ``moe_layer_delayed_*`` of suite ``ep``.

Started under mpirun with a file's name it measures and writes the time line of both ranks, which Perfetto opens.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from anabranch import _processes, engine
from anabranch.bench import mpi_launch
from anabranch.bench.timing import Timing, summary
from anabranch.engine import Span
from anabranch.ops.expert_parallel import ExpertParallel
from anabranch.ops.moe_ffn import moe_ffn
from anabranch.ops.router import Routing
from anabranch.planner import trace

RANKS, TOKENS, HIDDEN, WIDTH, EXPERTS, TOPK = 2, 1024, 512, 1024, 16, 4
WAVES = (1, 8)
# Of the forward and of the backward dispatch, each: about a third of the products of one direction.
DELAY_SECONDS = 0.04
_ROUNDS = 9


def rows() -> Iterator[dict[str, Any]]:
    """Rows ``moe_layer_delayed_1_waves``, ``moe_layer_delayed_8_waves``; none where there is no MPI.

    ``hidden_share``: 1 - (time with the delay - time without) / delay. ``hidden_in_timeline``: the part
    of all dispatches during which products ran, on the rank where it was smaller.
    """
    measured, busy = mpi_launch.observed("anabranch.bench.ep_waves", RANKS)
    for waves, result in measured.items():
        yield {
            "name": f"moe_layer_delayed_{waves}_waves",
            "shape": {"ranks": RANKS, "T": TOKENS, "H": HIDDEN, "F": WIDTH, "E": EXPERTS, "k": TOPK},
            "dtype": "float32",
            "threads": engine.num_threads(),
            "flops": 18.0 * RANKS * TOKENS * TOPK * HIDDEN * WIDTH,
            "max_error": 0.0,  # the ranks compared every bit with one wave
            "hidden_share": result["hidden_share"],
            "hidden_in_timeline": result["hidden_in_timeline"],
            "timing": Timing(*summary(result["seconds"]), busy),
        }  # fmt: skip


def hidden(spans: Sequence[Span]) -> float:
    """The part of a rank's dispatches during which products of experts ran."""
    products = sorted((s.begin, s.end) for s in spans if s.track == "products")
    dispatches = [s for s in spans if s.name == "expert_parallel_dispatch"]
    covered = 0.0
    for span in dispatches:
        reached = span.begin
        for begin, end in products:
            begin, end = max(begin, reached), min(end, span.end)
            if begin < end:
                covered += end - begin
                reached = end
    return covered / sum(s.end - s.begin for s in dispatches)


def perfetto(spans_of_ranks: Sequence[Sequence[Span]]) -> str:
    """The time line of all ranks in Chrome's trace format."""
    start = min(span.begin for spans in spans_of_ranks for span in spans)
    named: list[dict[str, Any]] = []
    drawn: list[dict[str, Any]] = []
    for rank, spans in enumerate(spans_of_ranks):
        threads: list[str] = []
        for track, number in (("exchange", "site"), ("products", "first expert")):
            first = len(threads)
            ends: list[float] = []
            # Viewers take what overlaps on a thread for nested: a second thread holds it.
            for span in sorted((s for s in spans if s.track == track), key=lambda s: s.begin):
                lane = next((i for i, end in enumerate(ends) if end <= span.begin), len(ends))
                ends[lane : lane + 1] = [span.end]
                times = (span.begin - start, span.end - start)
                event = trace.span(rank, first + lane, span.name, *times)
                drawn.append(event | {"args": {number: span.number}})
            threads += [track] * max(len(ends), 1)
        named += trace.names(rank, f"rank {rank}", dict(enumerate(threads)))
    return trace.document([*named, *sorted(drawn, key=lambda event: event["ts"])], {})


def main() -> None:
    """One rank."""
    group = _processes.start_processes()
    steps = {waves: layer(waves) for waves in WAVES}
    expected = [np.asarray(array.addressable_data(0)) for array in steps[1]()]
    results: dict[int, dict[str, Any]] = {}
    seconds: dict[tuple[int, bool], list[float]] = {
        (w, d): [] for w in WAVES for d in (False, True)
    }
    for waves, step in steps.items():
        for array, want in zip(step(), expected, strict=True):
            if np.asarray(array.addressable_data(0)).tobytes() != want.tobytes():
                raise RuntimeError(f"bench: {waves} waves differ from one")
    for _ in range(_ROUNDS):
        for (waves, delayed), durations in seconds.items():
            durations.append(_timed(steps[waves], DELAY_SECONDS / waves if delayed else 0))
    for waves, step in steps.items():
        lines = record(step, waves)
        plain, delayed = (statistics.median(seconds[waves, d]) for d in (False, True))
        results[waves] = {
            # Two dispatches are delayed, the rows' and, in the backward pass, the gradients'.
            "hidden_share": 1 - (delayed - plain) / (2 * DELAY_SECONDS),
            "hidden_in_timeline": min(map(hidden, lines)),
            "seconds": seconds[waves, True],
        }
    if group.rank == 0:
        for path in sys.argv[1:]:
            Path(path).write_text(perfetto(lines), encoding="utf-8")
        mpi_launch.report(results)
    _processes.end()


def record(step: Callable[[], Any], waves: int) -> list[list[Span]]:
    """Time lines of all ranks, of one delayed call of a step that has run before; every rank must call it."""
    with engine.timeline() as spans:
        _timed(step, DELAY_SECONDS / waves)
    everybody = _processes.gather("spans", json.dumps(spans).encode().ljust(1 << 16))
    return [[Span(*span) for span in json.loads(line)] for line in everybody]


def _timed(step: Callable[[], Any], delay: float) -> float:
    engine.set_dispatch_delay(delay)
    _processes.gather("timed", b"")
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def layer(waves: int) -> Callable[[], list[jax.Array]]:
    """Forward and gradient of a layer on all ranks: y, and the gradients of x and of the matrices."""
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((RANKS * TOKENS, EXPERTS)), axis=1)[:, :TOPK].astype(np.int32)
    weights = rng.dirichlet(np.ones(TOPK), RANKS * TOKENS).astype(np.float32)
    shapes = [(RANKS * TOKENS, HIDDEN), *[(EXPERTS, HIDDEN, WIDTH)] * 2, (EXPERTS, WIDTH, HIDDEN)]
    draws = rng.normal(size=(1 << 16) - 1).astype(np.float32)  # odd period: no pattern
    arrays = [np.resize(draws * HIDDEN**-0.5, shape) for shape in shapes]
    ep = ExpertParallel(EXPERTS, TOPK, waves=waves)

    def body(ids: jax.Array, weights: jax.Array, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        def forward(x: jax.Array, *matrices: jax.Array) -> jax.Array:
            return moe_ffn(x, Routing(ids, weights, None), *matrices, expert_parallel=ep)

        y, pullback = jax.vjp(forward, *arrays)
        return y, *pullback(y)

    mesh = Mesh(np.array(jax.devices()), (ep.axis_name,))
    spec = PartitionSpec(ep.axis_name)
    sharding = NamedSharding(mesh, spec)
    placed = [
        jax.make_array_from_callback(a.shape, sharding, lambda index, a=a: a[index])
        for a in (ids, weights, *arrays)
    ]
    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(spec,) * 6, out_specs=(spec,) * 5))
    return lambda: jax.block_until_ready(mapped(*placed))


if __name__ == "__main__":
    main()

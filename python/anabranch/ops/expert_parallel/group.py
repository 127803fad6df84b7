# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Experts spread over the ranks of a mesh axis: who holds which row, there and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch import _collective, _processes, _register
from anabranch._collective import AxisName
from anabranch.ops.expert_parallel import calls
from anabranch.ops.expert_parallel.calls import ExpertParallelPlan
from anabranch.ops.expert_parallel.options import OVERFLOWS, check_options


@dataclasses.dataclass(frozen=True, init=False)
class ExpertParallel:
    """Dispatch and combine over a mesh axis; all methods are for use inside ``jax.shard_map``.

    Attributes:
      num_experts: E, over all ranks. The first E % ranks ranks own one expert more than the others;
        ranks may own none.
      topk: k, slots of a token.
      axis_name: mesh axis, or axes, along which experts are spread.
      capacity: rows that a rank can receive, or ``"worst"``: as many as any routing can send it.
        Memory of rows that are not used is never touched.
      overflow: when a rank needs more rows than ``capacity``: ``"error"`` on every rank, with the
        rank and both numbers; ``"grow"``: take what is needed, up to the worst case; ``"drop"``:
        leave out the rows past the capacity and count them.
      combine_mode: ``"exact"``: f32 sums in ascending expert order, one rounding, so that the bits do
        not depend on the number of ranks. ``"two_level"``: what the ranks of one domain have for a token
        is added up and rounded first, as it would travel between hosts; the bits depend on the ranks.
      domain_size: neighbouring ranks that form a domain, for ``"two_level"``.
      chunks: ``moe_ffn`` takes the tokens in at most so many parts, one after the other, and in as few
        as the capacity allows: with ``"worst"`` that of one chunk, else a number of rows that suffices
        for a chunk. Every token is served and nothing overflows. 1: all at once.
      waves: ``moe_ffn`` exchanges and computes a rank's experts in so many groups, the exchange of later
        ones under way while earlier ones are computed. No result depends on it.
      wire: how ``dispatch`` sends rows, of gradients too. ``"bf16"``: in their own type. ``"mxfp8"``: rounded
        once per token, as ``quantize(x, "mxfp8_e4m3")``; its gradient is 1. ``combine`` never rounds so.
      transport: ``"inprocess"``: ranks are devices of one process; ``"mpi"``: every rank is a process
        that mpirun has started, see ``start_processes``; ``"auto"``: whichever of them JAX was started
        for.
      alignment: rows; each expert's rows begin at a multiple of it, the gap is zeros.
      rank_of_expert: for each expert the rank that owns it, in place of the even table.
    """

    num_experts: int
    topk: int
    axis_name: AxisName = "expert"
    capacity: int | str = "worst"
    overflow: str = "error"
    combine_mode: str = "exact"
    waves: int = 1
    wire: str = "bf16"
    transport: str = "auto"
    alignment: int = 1
    rank_of_expert: tuple[int, ...] | None = None
    chunks: int = 1
    domain_size: int = 1

    def __init__(
        self,
        num_experts: int,
        topk: int,
        axis_name: AxisName = "expert",
        *,
        capacity: int | str = "worst",
        overflow: str = "error",
        combine: str = "exact",
        waves: int = 1,
        wire: str = "bf16",
        transport: str = "auto",
        alignment: int = 1,
        rank_of_expert: tuple[int, ...] | None = None,
        chunks: int = 1,
        domain_size: int = 1,
    ) -> None:
        values = dict(locals(), combine_mode=combine)
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, values[field.name])
        check_options(self)

    def prepare(self, experts: jax.Array) -> ExpertParallelPlan:
        """Agrees with the other ranks on where every routed slot's row goes.

        Only counts travel: 4 E bytes a rank.

        Args:
          experts: i32 [T, k], global expert ids, different within a token; -1 = routed nowhere. T is
            this rank's number of tokens.

        Returns:
          The plan.

        Raises:
          ValueError: shape or dtype do not fit.
          jax.errors.JaxRuntimeError: on every rank, when on any of them an id is out of range or
            appears twice in a token, or a capacity does not suffice.
        """
        if experts.ndim != 2 or experts.shape[1] != self.topk or experts.dtype != jnp.int32:
            raise ValueError(
                f"ExpertParallel.prepare: experts must be int32[T, {self.topk}], got "
                f"{experts.dtype}{list(experts.shape)}"
            )
        where = _collective.place(self.axis_name, processes=self.between_processes())
        table = jnp.asarray(self.owners(where.ranks), jnp.int32)
        local = self.local_experts(where.ranks)
        words = calls.plan_words(where.ranks, self.num_experts, experts.size, local)
        worst = self.worst_capacity(experts.shape[0], where.ranks)
        # Under "grow" a first guess; what it grows to never exceeds the worst case.
        capacity = worst if self.capacity == "worst" else min(int(self.capacity), 2**31 - 1)
        shapes = ((words,), (local,), (local + 1,), (3,))
        overflow = OVERFLOWS.index(self.overflow)
        options = (where.ranks, capacity, self.alignment, overflow, where.processes)
        return ExpertParallelPlan(*calls.prepare(options, shapes, where.index, experts, table))

    def dispatch(
        self, plan: ExpertParallelPlan, x: jax.Array, weights: jax.Array | None = None
    ) -> Any:
        """Sends each routed slot's row, and weight, to the rank that owns its expert.

        Differentiable in ``x`` and ``weights``.

        Args:
          plan: from ``prepare``.
          x: bf16 or f32 [T, H].
          weights: floating [T, k], sent as f32.

        Returns:
          rows [C, H] in x's dtype, C the static capacity; with ``weights`` also row_weights f32 [C].
          Rows of group i are ``group_offsets[i] + [0, group_sizes[i])``, padding up to the next
          group is zero, and rows past ``group_offsets[-1]`` are undefined, as are their gradients:
          dense operations on all C rows mask them first and last.

        Raises:
          ValueError: a shape or dtype does not fit. (JAX reports faults of a plan's values.)
        """
        tokens = self._tokens("dispatch", plan)
        if x.ndim != 2 or x.shape[0] != tokens or x.dtype not in (jnp.bfloat16, jnp.float32):
            raise ValueError(
                f"ExpertParallel.dispatch: x must be bfloat16 or float32 [{tokens}, H] to fit the "
                f"plan, got {x.dtype}{list(x.shape)}"
            )
        weighted = weights is not None
        if weighted and weights.shape != (tokens, self.topk):
            raise ValueError(
                f"ExpertParallel.dispatch: weights must be [{tokens}, {self.topk}] to fit the plan,"
                f" got {weights.dtype}{list(weights.shape)}"
            )
        weights = weights.astype(jnp.float32) if weighted else jnp.zeros(0, jnp.float32)
        operands = _register.align(plan.place, plan.words, x, weights)
        rows, row_weights = calls.dispatch(self.call_options(tokens, weighted), *operands)
        return (rows, row_weights) if weighted else rows

    def combine(self, plan: ExpertParallelPlan, rows: jax.Array) -> jax.Array:
        """Adds up each token's rows, fetched from the ranks that own its experts.

        Differentiable in ``rows``; the gradient is a dispatch.

        Args:
          plan: from ``prepare``.
          rows: bf16 or f32 [C, H], as ``dispatch`` lays them out. Weigh them before: rows are added
            as they are.

        Returns:
          y [T, H] in rows' dtype: f32 sums in ascending expert order, rounded once; a token without
          rows gets zeros. The same bits for any number of ranks.

        Raises:
          ValueError: a shape or dtype does not fit.
        """
        tokens = self._tokens("combine", plan)
        options = self.call_options(tokens, weighted=False)
        capacity = options.capacity
        fits = rows.ndim == 2 and rows.shape[0] == capacity
        if not fits or rows.dtype not in (jnp.bfloat16, jnp.float32):
            raise ValueError(
                f"ExpertParallel.combine: rows must be bfloat16 or float32 [{capacity}, H] to fit "
                f"the plan, got {rows.dtype}{list(rows.shape)}"
            )
        no_weights = jnp.zeros(0, jnp.float32)
        return calls.combine(options, *_register.align(plan.place, plan.words, rows, no_weights))[0]

    def local_experts(self, ranks: int) -> int:
        """L: the largest number of experts that one of ``ranks`` ranks owns."""
        return int(np.bincount(self.owners(ranks)).max())

    def static_capacity(self, tokens: int, ranks: int) -> int:
        """C: rows of a rank's buffer when each of ``ranks`` ranks has ``tokens`` tokens."""
        if self.overflow != "grow" and self.capacity != "worst":
            return int(self.capacity)
        return self.worst_capacity(tokens, ranks)

    def worst_capacity(self, tokens: int, ranks: int) -> int:
        """Rows that a rank can at most receive when each of ``ranks`` ranks has ``tokens`` tokens."""
        local = self.local_experts(ranks)
        return calls.worst_capacity(tokens * ranks, self.topk, local, self.alignment)

    def call_options(self, tokens: int, weighted: bool) -> calls.Options:
        """What the exchanges of this rank's ``tokens`` tokens need to know."""
        ranks, processes = jax.lax.axis_size(self.axis_name), self.between_processes()
        capacity = self.static_capacity(tokens, ranks)
        how = (processes, self.domain_size if self.combine_mode == "two_level" else 0, self.wire)
        return calls.Options(ranks, tokens, self.topk, capacity, weighted, *how)

    def between_processes(self) -> bool:
        """Whether ranks are processes; starts the transport between them if need be."""
        if self.transport == "mpi":
            _processes.start()
            return True
        return self.transport == "auto" and _processes.between()

    def owners(self, ranks: int) -> np.ndarray:
        """i32 [E], the rank of each expert."""
        if self.rank_of_expert is not None:
            table = np.asarray(self.rank_of_expert)
            if table.min() < 0 or table.max() >= ranks:
                raise ValueError(
                    f"ExpertParallel: rank_of_expert has ranks {table.min()} to {table.max()}; the "
                    f"axis {self.axis_name!r} has {ranks}"
                )
            return table
        sizes = [len(part) for part in np.array_split(np.arange(self.num_experts), ranks)]
        return np.repeat(np.arange(ranks, dtype=np.int32), sizes)

    def slots(self, ranks: int) -> np.ndarray:
        """i32 [E], where each expert lies in an array of L experts a rank, one rank after the other.

        With fewer experts than such slots some are of no expert.
        """
        owners = self.owners(ranks)
        before = np.tril(owners[:, None] == owners, -1).sum(axis=1)
        return owners * self.local_experts(ranks) + before

    def _tokens(self, method: str, plan: ExpertParallelPlan) -> int:
        ranks = jax.lax.axis_size(self.axis_name)
        local = self.local_experts(ranks)
        words = plan.words.shape[0] - calls.plan_words(ranks, self.num_experts, 0, local)
        if words < 0 or words % (3 * self.topk) or plan.group_sizes.shape != (local,):
            raise ValueError(
                f"ExpertParallel.{method}: the plan (words {list(plan.words.shape)}, group_sizes "
                f"{list(plan.group_sizes.shape)}) was made by another ExpertParallel than this one "
                f"with E={self.num_experts}, k={self.topk} on {ranks} ranks"
            )
        return words // (3 * self.topk)

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The fixed binary tree over which sums over tokens are taken, within a rank and on across ranks.

T tokens in order are cut into equal leaves, a power of two of them: leaf i is tokens T * i // leaves to
T * (i + 1) // leaves. A leaf is summed first, then leaves 2 i and 2 i + 1, then pairs of those sums, and so on.
A rank that holds its share of the tokens holds a run of the leaves, computes their subtree, and the ranks go on
with the same tree: a gradient, loss or norm has the same bits on any number of ranks. `psum` keeps no order.

When the ranks are no power of two, some hold twice as many leaves as others (`leaf_runs`). Arrays have the shape
of the larger share: what follows a rank's own tokens is padding, which must contribute zeros.

`scope` says, while a function is traced, what tree its sums belong to; outside of it there is one leaf.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from anabranch import _collective
from anabranch.ops.tree_add import tree_add, tree_sum

# Mesh axes with their sizes, the axis of neighbouring ranks first.
Axes = tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True)
class TokenTree:
    """One rank's part of the tree: the most leaves that a rank holds, and the axes over which tokens are spread.

    Leaves are a power of two. `processes`: every rank is a process, and the engine's own collectives serve, whose
    errors name a rank that does not come; else XLA's do.
    """

    leaves: int = 1
    axes: Axes = ()
    processes: bool = False

    def __post_init__(self) -> None:
        """Checks the power of two."""
        if not _is_power_of_two(self.leaves) or any(size < 1 for _, size in self.axes):
            raise ValueError(f"TokenTree: {self}; leaves must be a power of two, sizes at least 1")

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes, that of neighbouring ranks last; empty on one rank."""
        return tuple(name for name, _ in reversed(self.axes))

    def rank(self) -> jax.Array | int:
        """The calling rank's place in the order of tokens."""
        rank: Any = 0
        for name, size in reversed(self.axes):
            rank = rank * size + jax.lax.axis_index(name)
        return rank

    @property
    def num_ranks(self) -> int:
        """Ranks that share the tree."""
        return math.prod(size for _, size in self.axes)

    @property
    def num_shares(self) -> int:
        """How many times the leaves of this rank make up the whole tree."""
        return 1 << (self.num_ranks.bit_length() - 1)


def leaf_runs(leaves: int, ranks: int) -> list[tuple[int, int]]:
    """First leaf of each rank, and how many it holds: whole subtrees, so that ranks can go on.

    Halves of the leaves go to halves of the ranks, the larger half of an odd number first. `ranks` is at most
    `leaves`, a power of two.
    """
    if ranks == 1:
        return [(0, leaves)]
    first = leaf_runs(leaves // 2, ranks - ranks // 2)
    second = leaf_runs(leaves // 2, ranks // 2)
    return first + [(leaves // 2 + begin, count) for begin, count in second]


def _is_power_of_two(count: int) -> bool:
    return count >= 1 and count & (count - 1) == 0


_ONE_LEAF = TokenTree()
_CURRENT = contextvars.ContextVar("token_tree", default=_ONE_LEAF)


def current() -> TokenTree:
    """The tree of the enclosing `scope`."""
    return _CURRENT.get()


@contextlib.contextmanager
def scope(tree: TokenTree) -> Iterator[None]:
    """Sums over tokens of what is traced inside follow `tree`; with axes, inside `jax.shard_map` alone."""
    token = _CURRENT.set(tree)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def sum_over_tokens(x: jax.Array) -> jax.Array:
    """This rank's subtree of the sum over the first axis: f32 [T, ...] -> f32 [...]."""
    return _sum(x, current().leaves)


def sum_over_ranks(x: jax.Array) -> jax.Array:
    """The tree from every rank's subtree on: f32 of any shape, the same result on every rank.

    Its gradient is the result's as it is: each rank differentiates the one sum by its own part.
    """
    axes = current().axes
    return _all_sum(x, axes, current().processes) if axes else x


def count_over_ranks(x: Any) -> Any:
    """The sum of arrays of whole numbers, or a tree of them, over the ranks; order does not matter."""
    names = current().axis_names
    return _collective.count(x, names, processes=current().processes) if names else x


def gather_along(x: jax.Array, axis_name: str) -> jax.Array:
    """The arrays of the ranks along a mesh axis, one after the other along the first; not differentiable."""
    gathered = _collective.gather(x, axis_name, processes=current().processes)
    return gathered.reshape(-1, *x.shape[1:])


def replicated(x: jax.Array, *, besides: str | None = None) -> jax.Array:
    """Returns x, which every rank holds; its gradient is the sum over the ranks.

    `besides` names an axis along which x is no copy but another part of a whole: nothing is summed over it.
    """
    axes = tuple(axis for axis in current().axes if axis[0] != besides)
    return _replicated(x, axes, current().processes) if axes else x


def spread(x: jax.Array, num_tokens: int) -> jax.Array:
    """Returns x [...] once for each token, [T, ...]; its gradient is this rank's subtree over them."""
    return _spread(x, num_tokens, current().leaves)


def look_up(table: jax.Array, indices: jax.Array) -> jax.Array:
    """Returns table[indices], [..., H], for f32 table [V, H] and integers [...].

    The table's gradient is complete on every rank. It is summed in the order of all ranks' tokens, one after
    the other: gathering their rows moves less than summing V of them over the tree would.
    """
    return _look_up(table, indices, current())


def _sum(x: jax.Array, leaves: int) -> jax.Array:
    tokens = x.shape[0]
    if tokens % leaves == 0:
        parts = jnp.sum(x.reshape(leaves, tokens // leaves, *x.shape[1:]), axis=1)
    else:
        begins = [tokens * i // leaves for i in range(leaves + 1)]
        parts = jnp.stack([jnp.sum(x[a:b], axis=0) for a, b in itertools.pairwise(begins)])
    while parts.shape[0] > 1:
        parts = tree_add(parts[0::2], parts[1::2])
    return parts[0]


def _exchange(x: jax.Array, axes: Axes, processes: bool) -> jax.Array:
    names = tuple(name for name, _ in reversed(axes))
    if processes:
        where = _collective.place(names, processes=True)
        return _collective.call("sum_over_ranks", [jax.typeof(x)], where, x)[0]
    if not all(_is_power_of_two(size) for _, size in axes):
        return tree_sum(jax.lax.all_gather(x, names))
    # Recursive doubling. Addition commutes, so both partners of an exchange get the same bits.
    for name, size in axes:
        for step in (1 << i for i in range(size.bit_length() - 1)):
            theirs = jax.lax.ppermute(x, name, [(rank, rank ^ step) for rank in range(size)])
            x = tree_add(x, theirs)
    return x


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _all_sum(x: jax.Array, axes: Axes, processes: bool) -> jax.Array:
    return _exchange(x, axes, processes)


_all_sum.defvjp(
    lambda x, axes, processes: (_exchange(x, axes, processes), None),
    lambda axes, processes, _, gradient: (gradient,),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _replicated(x: jax.Array, axes: Axes, processes: bool) -> jax.Array:
    del axes, processes
    return x


_replicated.defvjp(
    lambda x, axes, processes: (x, None),
    lambda axes, processes, _, gradient: (_exchange(gradient, axes, processes),),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _spread(x: jax.Array, num_tokens: int, leaves: int) -> jax.Array:
    del leaves
    return jnp.broadcast_to(x, (num_tokens, *x.shape))


_spread.defvjp(
    lambda x, num_tokens, leaves: (_spread(x, num_tokens, leaves), None),
    lambda num_tokens, leaves, _, gradient: (_sum(gradient, leaves),),
)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _look_up(table: jax.Array, indices: jax.Array, tree: TokenTree) -> jax.Array:
    del tree
    return table[indices]


def _look_up_backward(tree: TokenTree, kept: Any, gradient: jax.Array) -> Any:
    table, indices = kept
    indices, gradient = indices.reshape(-1), gradient.reshape(-1, table.shape[1])
    if tree.axes:
        indices, gradient = (_of_all_ranks(array, tree) for array in (indices, gradient))
    return jnp.zeros_like(table).at[indices].add(gradient), None


_look_up.defvjp(
    lambda table, indices, tree: (table[indices], (table, indices)),
    _look_up_backward,
)


def _of_all_ranks(x: jax.Array, tree: TokenTree) -> jax.Array:
    """Every rank's tokens one after the other, without padding."""
    gathered = _collective.gather(x, tree.axis_names, processes=tree.processes)
    runs = leaf_runs(tree.leaves * tree.num_shares, tree.num_ranks)
    own = [x.shape[0] * count // tree.leaves for _, count in runs]
    if min(own) == x.shape[0]:
        return gathered.reshape(-1, *x.shape[1:])
    return jnp.concatenate([part[:count] for part, count in zip(gathered, own, strict=True)])

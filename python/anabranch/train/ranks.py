# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The ranks of a run in a mesh, each with its sequences and its experts.

Ranks are devices of this process, or the processes that mpirun has started, with one device each.
"""

import os
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from anabranch import _agreement as processes
from anabranch import models
from anabranch.data.reader import IGNORED_LABEL
from anabranch.errors import UsageError
from anabranch.ops.expert_parallel import ExpertParallel
from anabranch.ops.expert_parallel.parts import chunks_for
from anabranch.ops.token_tree import TokenTree, leaf_runs
from anabranch.recipes.recipe import Recipe

AXIS = "expert"
DATA_AXIS = "data"
_COUNT_FLAG = "--xla_force_host_platform_device_count"


def request_devices(count: int) -> None:
    """Makes XLA's CPU platform offer `count` devices; call before jax starts. No-op for 1."""
    if count == 1:
        return
    flags = re.sub(rf"{_COUNT_FLAG}=\S*", "", os.environ.get("XLA_FLAGS", "")).split()
    os.environ["XLA_FLAGS"] = " ".join([*flags, f"{_COUNT_FLAG}={count}"])


def check(recipe: Recipe) -> None:
    """UsageError unless the recipe's batch, leaves and experts can be spread over its devices."""
    count, train, model = recipe.parallel.devices, recipe.train, recipe.model
    leaves = train.reduction_leaves
    if count < 1:
        raise UsageError(f"--devices {count}: must be at least 1")
    low = [layer for layer in recipe.precision.layers(model.num_layers) if layer is not None]
    bounded = (recipe.parallel.capacity, recipe.parallel.chunks) != ("worst", 1)
    if count > 1 and bounded and low:
        raise UsageError(
            f"parallel.capacity={recipe.parallel.capacity}, parallel.chunks={recipe.parallel.chunks}: go with "
            f"precision.recipe=bf16 alone in this version, not {recipe.precision.recipe}"
        )
    if leaves < count:
        raise UsageError(
            f"--devices {count}: at most train.reduction_leaves={leaves}, over which sums are taken"
        )
    sequences = train.batch_size // train.microbatches
    # The smallest share of the tokens is one of so many.
    shares = 1 << (count - 1).bit_length()
    if sequences % shares:
        of = f" / train.microbatches={train.microbatches}" if train.microbatches > 1 else ""
        need = "must divide" if shares == count else f"{shares} must divide"
        raise UsageError(f"--devices {count}: {need} train.batch_size={train.batch_size}{of}")
    if shares != count and low:
        raise UsageError(
            f"--devices {count}: precision.recipe={recipe.precision.recipe} goes with a power of two alone; "
            "others pad their tokens, and blocks would hold padding"
        )
    data = recipe.parallel.data
    if data < 1 or count % data:
        raise UsageError(f"parallel.data={data}: must divide --devices {count}")


class Ranks:
    """The mesh of a run. On one device everything here hands back what it is given."""

    def __init__(self, recipe: Recipe) -> None:
        """Takes the first `parallel.devices` devices; UsageError when the recipe or the process does not fit."""
        check(recipe)
        self.count = recipe.parallel.devices
        data = recipe.parallel.data
        self._between_processes = processes.count() > 1
        # Ranks of one group are neighbours in the order of tokens.
        axes = ((AXIS, self.count // data), (DATA_AXIS, data))
        runs = leaf_runs(recipe.train.reduction_leaves, self.count)
        self.tree = TokenTree(
            max(leaves for _, leaves in runs),
            tuple(axis for axis in axes if axis[1] > 1),
            self._between_processes,
        )
        devices = _devices()
        if self._between_processes and processes.count() != self.count:
            raise UsageError(
                f"--devices {self.count}: mpirun has started {processes.count()} processes, and each is a rank"
            )
        if len(devices) < self.count:
            raise UsageError(
                f"--devices {self.count}: this process has {len(devices)}; jax was started before"
            )
        # One rank that holds all experts dispatches to itself where rows are rounded on their way.
        wired = recipe.parallel.wire != "bf16" and recipe.model.num_moe_layers > 0
        self.expert_parallel = _expert_parallel(recipe) if self.count > data or wired else None
        self._in_mesh = self.count > 1 or self.expert_parallel is not None
        self._order = _sequences_by_rank(recipe).reshape(-1)
        self._mesh = jax.sharding.Mesh(
            np.array(devices[: self.count]).reshape(data, -1), (DATA_AXIS, AXIS)
        )

    def specs(self, tree: Any) -> Any:
        """Partition of each leaf of parameters or optimizer state: experts are spread, all else is copied."""
        return jax.tree_util.tree_map_with_path(
            lambda path, _: P(AXIS) if models.is_expert(path) else P(), tree
        )

    def place(self, tree: Any) -> Any:
        """The same arrays where `specs` wants them; of experts every rank gets as many, zeros if need be."""
        if not self._in_mesh:
            return tree
        tree = self._map_experts(self._spread_out, tree)
        shardings = jax.tree.map(
            lambda spec: NamedSharding(self._mesh, spec),
            self.specs(tree),
            is_leaf=lambda node: isinstance(node, P),
        )
        if self._between_processes:
            return jax.tree.map(_put, tree, shardings)
        return jax.device_put(tree, shardings)

    def place_batch(self, batch: Any) -> Any:
        """A batch, or its shapes, as `spread`'s function takes it."""
        if not self._between_processes:
            return batch
        sharding = NamedSharding(self._mesh, P())
        return jax.tree.map(lambda array: _put(array, sharding), batch)

    def gather(self, tree: Any) -> Any:
        """The same arrays whole on the first device of this process; every process must call it."""
        if not self._in_mesh:
            return tree
        if self._between_processes:
            tree = jax.tree.map(_whole, tree)
        else:
            tree = jax.device_put(tree, jax.devices()[0])
        return self._map_experts(lambda array, slots: array[slots], tree)

    def spread(self, step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """The function of (state, batch) of all ranks, made of that of one.

        Each rank gets its experts and, of every microbatch, its share of the sequences; the second result, what the
        step reports, must be equal on all ranks.
        """
        if not self._in_mesh:
            return step

        def everywhere(state: Any, batch: Any) -> Any:
            specs = self.specs(state)
            run = jax.shard_map(
                step, mesh=self._mesh, in_specs=(specs, P((DATA_AXIS, AXIS))), out_specs=(specs, P()),
                check_vma=False,
            )  # fmt: skip
            return run(state, {name: self._by_rank(name, batch[name]) for name in batch})

        return everywhere

    def _by_rank(self, name: str, array: jax.Array) -> jax.Array:
        """[B, ...] in the order of ranks, with sequences of padding where a rank has fewer than others."""
        fill = jnp.full_like(array[:1], IGNORED_LABEL if name == "labels" else 0)
        return jnp.concatenate([array, fill])[self._order]

    def _map_experts(self, function: Callable[[jax.Array, np.ndarray], Any], tree: Any) -> Any:
        """`function` of experts' arrays and each expert's slot, where ranks do not hold equally many."""
        if self.expert_parallel is None:
            return tree
        slots = self.expert_parallel.slots(self._mesh.shape[AXIS])
        if len(slots) == self._num_slots():
            return tree

        def leaf(path: Any, array: jax.Array) -> Any:
            # An optimizer may keep nothing of a parameter.
            return function(array, slots) if models.is_expert(path) and array.size else array

        return jax.tree_util.tree_map_with_path(leaf, tree)

    def _num_slots(self) -> int:
        ranks = self._mesh.shape[AXIS]
        return ranks * self.expert_parallel.local_experts(ranks)

    def _spread_out(self, array: jax.Array, slots: np.ndarray) -> jax.Array:
        return jnp.zeros((self._num_slots(), *array.shape[1:]), array.dtype).at[slots].set(array)


def _sequences_by_rank(recipe: Recipe) -> np.ndarray:
    """Sequences of a batch by [rank, microbatch, sequence]; -1 is padding."""
    train = recipe.train
    sequences, leaves = train.batch_size // train.microbatches, train.reduction_leaves
    runs = leaf_runs(leaves, recipe.parallel.devices)
    room = max(sequences * count // leaves for _, count in runs)
    order = np.full((len(runs), train.microbatches, room), -1)
    for rank, (begin, count) in enumerate(runs):
        own = np.arange(sequences * begin // leaves, sequences * (begin + count) // leaves)
        for microbatch in range(train.microbatches):
            order[rank, microbatch, : len(own)] = microbatch * sequences + own
    return order


def _expert_parallel(recipe: Recipe) -> ExpertParallel:
    """How rows travel; a capacity is a bound in which every token is served, in as many parts as it takes."""
    model, train, parallel = recipe.model, recipe.train, recipe.parallel
    if parallel.devices == parallel.data:
        return ExpertParallel(model.num_experts, model.topk, AXIS, wire=parallel.wire)
    options: dict[str, Any] = {
        "waves": parallel.waves, "chunks": parallel.chunks, "wire": parallel.wire,
    }  # fmt: skip
    if parallel.capacity != "worst":
        capacity = int(parallel.capacity)
        sequences = _sequences_by_rank(recipe).shape[2]
        tokens = sequences * train.sequence_length
        given = ExpertParallel(model.num_experts, model.topk, AXIS)
        try:
            needed = chunks_for(given, capacity, tokens, parallel.devices // parallel.data)
        except ValueError as error:
            raise UsageError(f"parallel.capacity={capacity}: {error}") from error
        options |= {"capacity": capacity, "chunks": max(parallel.chunks, needed)}
    return ExpertParallel(model.num_experts, model.topk, AXIS, **options)


def _devices() -> list[jax.Device]:
    """Those of this process, or the first of every process."""
    if processes.count() == 1:
        return jax.devices()
    return list({device.process_index: device for device in reversed(jax.devices())}.values())[::-1]


def _put(array: Any, sharding: NamedSharding) -> Any:
    """An array that every process holds, or a shape, spread over all processes' devices."""
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)
    whole = np.asarray(array)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def _whole(array: jax.Array) -> jax.Array:
    mine = array.addressable_data(0)
    if array.is_fully_replicated:
        return mine
    # Groups that train on other sequences hold the same rows: those of the first come first.
    return jnp.asarray(processes.gather_rows("gather", np.asarray(mine))[: array.shape[0]])

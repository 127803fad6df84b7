# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The ranks of a run: devices of this process in a mesh, each with its sequences and its experts."""

import os
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from anabranch import models
from anabranch.errors import UsageError
from anabranch.ops.expert_parallel import ExpertParallel
from anabranch.ops.quantize import FORMATS
from anabranch.ops.token_tree import TokenTree
from anabranch.recipes.recipe import Recipe

AXIS = "expert"
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
    if count > 1 and any(FORMATS[layer.x].has_tensor_scale for layer in low):
        raise UsageError(
            f"--devices {count}: precision.recipe={recipe.precision.recipe} trains on one device in this "
            "version; its tensor scales are of all tokens"
        )
    if leaves % count:
        raise UsageError(
            f"--devices {count}: must divide train.reduction_leaves={leaves}, over which sums are taken"
        )
    sequences = train.batch_size // train.microbatches
    if sequences % count:
        of = f" / train.microbatches={train.microbatches}" if train.microbatches > 1 else ""
        raise UsageError(f"--devices {count}: must divide train.batch_size={train.batch_size}{of}")
    if model.num_moe_layers and model.num_experts % count:
        raise UsageError(
            f"--devices {count}: must divide model.num_experts={model.num_experts}; every rank "
            "holds as many experts"
        )


class Ranks:
    """The mesh of a run. On one device everything here hands back what it is given."""

    def __init__(self, recipe: Recipe) -> None:
        """Takes the first `parallel.devices` devices; UsageError when the recipe or the process does not fit."""
        check(recipe)
        self.count = recipe.parallel.devices
        self.tree = TokenTree(
            recipe.train.reduction_leaves // self.count,
            ((AXIS, self.count),) if self.count > 1 else (),
        )
        devices = jax.devices()
        if len(devices) < self.count:
            raise UsageError(
                f"--devices {self.count}: this process has {len(devices)}; jax was started before"
            )
        model = recipe.model
        self.expert_parallel = (
            ExpertParallel(model.num_experts, model.topk, AXIS) if self.count > 1 else None
        )
        self._microbatches = recipe.train.microbatches
        self._mesh = jax.sharding.Mesh(np.array(devices[: self.count]), (AXIS,))

    def specs(self, tree: Any) -> Any:
        """Partition of each leaf of parameters or optimizer state: experts are spread, all else is copied."""
        return jax.tree_util.tree_map_with_path(
            lambda path, _: P(AXIS) if models.is_expert(path) else P(), tree
        )

    def place(self, tree: Any) -> Any:
        """The same arrays where `specs` wants them."""
        if self.count == 1:
            return tree
        shardings = jax.tree.map(
            lambda spec: NamedSharding(self._mesh, spec),
            self.specs(tree),
            is_leaf=lambda node: isinstance(node, P),
        )
        return jax.device_put(tree, shardings)

    def gather(self, tree: Any) -> Any:
        """The same arrays whole on the first device."""
        return tree if self.count == 1 else jax.device_put(tree, jax.devices()[0])

    def spread(self, step: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """The function of (state, batch) of all ranks, made of that of one.

        Each rank gets its experts and, of every microbatch, its share of the sequences; the second result, what the
        step reports, must be equal on all ranks.
        """
        if self.count == 1:
            return step

        def everywhere(state: Any, batch: Any) -> Any:
            specs = self.specs(state)
            run = jax.shard_map(
                step, mesh=self._mesh, in_specs=(specs, P(AXIS)), out_specs=(specs, P()),
                check_vma=False,
            )  # fmt: skip
            return run(state, jax.tree.map(self._by_rank, batch))

        return everywhere

    def _by_rank(self, array: jax.Array) -> jax.Array:
        """[B, ...] in the order (rank, microbatch, sequence) from (microbatch, rank, sequence)."""
        groups = array.reshape(self._microbatches, self.count, -1, *array.shape[1:])
        return groups.swapaxes(0, 1).reshape(array.shape)

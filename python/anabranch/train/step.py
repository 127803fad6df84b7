# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""One optimizer step as one jitted function: gradients, clip, AdamW, expert biases, or nothing at all."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from anabranch import models
from anabranch.data.reader import IGNORED_LABEL
from anabranch.ops import token_tree
from anabranch.ops.adamw import sum_of_squares
from anabranch.ops.token_tree import TokenTree
from anabranch.train import optimizer as optimizers
from anabranch.train import precision, schedule

if TYPE_CHECKING:
    from anabranch.recipes.recipe import Recipe

Batch = dict[str, jax.Array]


class TrainState(NamedTuple):
    """What an optimizer step changes: f32 master weights (expert biases included) and AdamW's state.

    `gradients` is memory that steps write theirs to, of the shapes of params; with None each step allocates it.
    """

    params: Any
    opt_state: Any
    gradients: Any = None


class StepMetrics(NamedTuple):
    """What a step reports, summed over the global batch of B sequences, S tokens, L MoE layers, E experts."""

    cross_entropy: jax.Array  # f32, nats per valid label
    objective: jax.Array  # f32, what was differentiated: cross-entropy and auxiliary losses
    grad_norm: jax.Array  # f32, before clipping
    grad_squares: jax.Array  # f32 [leaves], squared norm of each gradient, in pytree order
    learning_rate: jax.Array  # f32, of this step
    group_sizes: jax.Array  # i32 [L, E], tokens per expert
    num_labels: jax.Array  # i32, valid labels
    num_tokens: jax.Array  # i32, tokens that are not padding
    applied: jax.Array  # bool, false when the step was skipped whole
    precision: jax.Array  # f32 [layers, products, 6, 5], see train.precision; [0, ...] for bf16


def batch_shapes(batch_size: int, sequence_length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes of a batch: i32 [B, S] each."""
    shape = jax.ShapeDtypeStruct((batch_size, sequence_length), jnp.int32)
    return dict.fromkeys(("tokens", "labels", "segment_ids", "positions"), shape)


def init_state(key: jax.Array, recipe: "Recipe") -> TrainState:
    """Fresh parameters and optimizer state: one program after the other, or both need memory at once."""
    # JAX keeps a program as long as its function exists: these are used once.
    params = jax.jit(lambda key: models.init(key, recipe.model))(key)
    return TrainState(params, jax.jit(optimizers.make(recipe.train).init)(params))


def keep_gradients(state: TrainState) -> TrainState:
    """The same state with memory for gradients, which steps then neither allocate nor free.

    0.76 of the 0.88 GB that a step of `bench-190m` works in are gradients, and memory that a step allocates is now
    and then not the one that the last step freed, see `machine.FreedMemory`.
    """
    # One program, not one a shape.
    zeros = jax.jit(lambda params: jax.tree.map(jnp.zeros_like, params))
    return state._replace(gradients=zeros(state.params))


def make_train_step(
    recipe: "Recipe", tree: TokenTree | None = None, expert_parallel: Any = None
) -> Callable[[TrainState, Batch], Any]:
    """Returns `step(state, batch) -> (state, StepMetrics)`, to be jitted by `jit_step`.

    batch: i32 [B, S] arrays `tokens labels segment_ids positions`. With `train.microbatches` = M the B sequences
    are taken M groups at a time; gradients are accumulated in f32 and every valid label of the global batch
    weighs the same, however many of them a group holds. A loss or gradient that is not finite leaves parameters,
    moments, count, schedule and expert biases bit for bit as they were. `tree` and
    `expert_parallel` are those of one rank among several, see `anabranch.train.ranks`.
    """
    tree = tree or TokenTree(recipe.train.reduction_leaves)
    train = recipe.train
    optimizer = optimizers.make(train)
    rate = schedule.learning_rate(train)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        with token_tree.scope(tree):
            return _step(state, batch)

    def _step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        objective, aux, gradients = accumulate(
            state.params, batch, recipe, expert_parallel, optimizers.applied_steps(state.opt_state)
        )
        squares = _squared_norms(gradients, expert_parallel)
        norm = jnp.sqrt(_sum_in_pairs(squares))
        applied = jnp.isfinite(objective) & jnp.isfinite(norm)
        # A step that is not applied leaves these as they are, see AdamW.step. No copy of the old
        # state is kept to choose from: parameters and moments are overwritten where they lie.
        params, opt_state = optimizer.step(
            gradients,
            state.opt_state,
            state.params,
            clip_factor=optimizers.clip_factor(norm, train.gradient_clip),
            applied=applied,
        )
        moved = models.update_expert_bias(params, aux["group_sizes"], recipe.model)
        params = jax.tree.map(
            lambda new, old: old if new is old else jnp.where(applied, new, old), moved, params
        )
        metrics = StepMetrics(
            cross_entropy=aux["cross_entropy"],
            objective=objective,
            grad_norm=norm,
            grad_squares=squares,
            learning_rate=jnp.float32(rate(optimizers.applied_steps(state.opt_state))),
            group_sizes=aux["group_sizes"],
            num_labels=aux["num_labels"],
            num_tokens=token_tree.count_over_ranks(
                jnp.sum(batch["segment_ids"] > 0, dtype=jnp.int32)
            ),
            applied=applied,
            precision=aux["precision"],
        )
        kept = None if state.gradients is None else gradients
        return TrainState(params, opt_state, kept), metrics

    return step


def jit_step(step: Callable[[TrainState, Batch], Any]) -> Any:
    """`jax.jit` of a step that overwrites the state where it lies, memory for gradients included."""
    return jax.jit(step, donate_argnums=0, keep_unused=True)


def _squared_norms(gradients: Any, expert_parallel: Any) -> jax.Array:
    """Squared norm of each gradient, f32 [leaves]; that of experts over all of them, wherever they are."""

    def leaf(path: Any, gradient: jax.Array) -> jax.Array:
        if not models.is_expert(path):
            return sum_of_squares(gradient)
        by_expert = sum_of_squares(gradient, by_row=True)
        if expert_parallel is not None:
            axis = expert_parallel.axis_name
            slots = expert_parallel.slots(jax.lax.axis_size(axis))
            by_expert = token_tree.gather_along(by_expert, axis)[slots]
        return _sum_in_pairs(by_expert)

    return jnp.stack(jax.tree.leaves(jax.tree_util.tree_map_with_path(leaf, gradients)))


def _sum_in_pairs(x: jax.Array) -> jax.Array:
    """The sum of f32 [n]; XLA's own reduction takes its terms in an order that depends on what it is fused with."""
    while x.shape[0] > 1:
        x = jnp.pad(x, (0, x.shape[0] % 2))
        x = x[0::2] + x[1::2]
    return x[0]


def accumulate(
    params: Any, batch: Batch, recipe: "Recipe", expert_parallel: Any = None, number: Any = 0
) -> tuple[jax.Array, dict, Any]:
    """Objective (f32), aux of the whole batch, and f32 gradients, over `train.microbatches` groups of sequences.

    `number` counts steps, for stochastic rounding.
    """
    count = recipe.train.microbatches
    # Divided by the number of valid labels of the global batch, never a mean of the groups' means.
    num_labels = token_tree.count_over_ranks(
        jnp.sum(batch["labels"] != IGNORED_LABEL, dtype=jnp.int32)
    )

    def objective(given: Any, part: Batch) -> tuple[jax.Array, dict]:
        params, probes = given[0], token_tree.replicated(given[1])
        with precision.step_scope(recipe, probes, number, part.get("microbatch", 0)):
            loss, aux = models.loss(
                params, part, recipe.model, num_labels=num_labels, auxiliary_scale=1.0 / count,
                expert_parallel=expert_parallel,
            )  # fmt: skip
        return loss, {name: aux[name] for name in ("cross_entropy", "group_sizes", "num_labels")}

    value_and_grad = jax.value_and_grad(objective, has_aux=True)
    given = (params, precision.probes(recipe))
    if count == 1:
        (loss, aux), (gradients, statistics) = value_and_grad(given, batch)
        return loss, aux | {"precision": statistics}, gradients

    def body(carry: Any, part: Batch) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, carry, value_and_grad(given, part)), None

    parts = {name: _split(array, count) for name, array in batch.items()}
    parts["microbatch"] = jnp.arange(count)
    shapes = jax.eval_shape(value_and_grad, given, {name: a[0] for name, a in parts.items()})
    zeros = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    ((loss, aux), (gradients, statistics)), _ = jax.lax.scan(body, zeros, parts)
    return loss, aux | {"precision": statistics}, gradients


def _split(array: jax.Array, count: int) -> jax.Array:
    if array.shape[0] % count:
        raise ValueError(
            f"train.batch_size {array.shape[0]} is not a multiple of train.microbatches {count}"
        )
    return array.reshape(count, array.shape[0] // count, *array.shape[1:])


def make_eval_step(recipe: "Recipe") -> Callable[[Any, Batch], tuple[jax.Array, jax.Array]]:
    """Returns `step(params, batch) -> (cross-entropy f32 in nats per label, valid labels i32)`."""

    def step(params: Any, batch: Batch) -> tuple[jax.Array, jax.Array]:
        _, aux = models.loss(params, batch, recipe.model)
        return aux["cross_entropy"], aux["num_labels"]

    return step


def first_non_finite(state: TrainState, metrics: StepMetrics) -> str:
    """Name of the first non-finite thing of a skipped step: the loss, or a parameter's gradient."""
    from anabranch.train.checkpoint import leaf_name

    if not bool(jnp.isfinite(metrics.objective)):
        return "loss"
    leaves = jax.tree_util.tree_flatten_with_path(state.params)[0]
    for (path, _), finite in zip(leaves, jnp.isfinite(metrics.grad_squares), strict=True):
        if not bool(finite):
            return f"gradient of {leaf_name(path)}"
    return "gradient norm"

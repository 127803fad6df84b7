# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Losses and the bias rule that keep the experts' loads even."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from anabranch.ops import token_tree


def load_balancing_loss(
    scores: jax.Array,
    experts: jax.Array | None,
    num_experts: int,
    coeff: float,
    *,
    group_sizes: jax.Array | None = None,
    normalize: bool = True,
    axis_name: str | tuple[str, ...] | None = None,
) -> jax.Array:
    """Switch Transformer's load-balancing loss, ``coeff * E * sum_i f_i P_i``.

    ``f_i`` is the share of routed slots that chose expert i and ``P_i`` the mean, over routed
    tokens, of expert i's score. A perfectly even load gives ``coeff``. It is a value per layer: a
    model adds (or averages) the layers' values and never pools their counts first.

    Args:
      scores: f32 [T, E], unbiased scores as in ``Routing.scores``; not softmaxed again.
      experts: i32 [T, k]; slots of -1 count nowhere, and a token with only such slots is no part
        of the mean. None: every token counts, and ``group_sizes`` must be given.
      num_experts: E.
      coeff: factor of the loss.
      group_sizes: i32 [E], routed slots per expert, as in ``RaggedPlan``; taken in place of
        counting ``experts``.
      normalize: divide each token's scores by their sum first (sigmoid scores do not sum to 1).
      axis_name: mesh axis or axes over which f and P are taken, for a loss of the global batch
        (Qwen3, arXiv:2501.11873). None: those of the enclosing `anabranch.ops.token_tree.scope`.

    Returns:
      f32 scalar; 0 if nothing was routed.

    Raises:
      ValueError: shapes or dtypes do not fit.

    Source: Fedus et al., arXiv:2101.03961, equations 4-6, with the k choices of a token counted
    as f over slots.
    """
    _check_balance_arguments(scores, experts, group_sizes, num_experts)
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    tokens = scores.shape[0]
    routed = jnp.ones(tokens, bool) if experts is None else (experts >= 0).any(axis=1)
    if group_sizes is None:
        # The bin past the last expert takes the slots that are routed nowhere.
        bins = jnp.where(experts < 0, num_experts, experts).reshape(-1)
        group_sizes = jnp.bincount(bins, length=num_experts + 1)[:num_experts]
    counts = group_sizes.astype(scores.dtype)
    # Unrouted tokens are replaced before any arithmetic: a NaN among them must not reach gradients.
    scores = jnp.where(routed[:, None], scores, 1)
    if normalize:
        total = scores.sum(axis=1, keepdims=True)
        scores = scores / jnp.where(total == 0, 1, total)
    score_sum = token_tree.sum_over_tokens(jnp.where(routed[:, None], scores, 0))
    num_routed = routed.sum().astype(scores.dtype)
    if axis_name is not None:
        counts, score_sum, num_routed = jax.lax.psum((counts, score_sum, num_routed), axis_name)
    elif token_tree.current().axes:
        counts, num_routed = token_tree.count_over_ranks((counts, num_routed))
        score_sum = token_tree.sum_over_ranks(score_sum)
    share = counts / jnp.maximum(counts.sum(), 1)
    mean_score = score_sum / jnp.maximum(num_routed, 1)
    return coeff * num_experts * (share * mean_score).sum()


def router_z_loss(logits: jax.Array, coeff: float) -> jax.Array:
    """The router z-loss of ST-MoE: ``coeff`` times the mean over tokens of logsumexp squared.

    Args:
      logits: [T, E], any floating dtype; computed in f32.
      coeff: factor of the loss.

    Returns:
      f32 scalar; 0 if T is 0.

    Raises:
      ValueError: ``logits`` is not a floating-point [T, E] array.

    Source: Zoph et al., arXiv:2202.08906, equation 5.
    """
    if logits.ndim != 2 or not jnp.issubdtype(logits.dtype, jnp.floating):
        raise ValueError(
            f"router_z_loss: logits must be floating-point [T, E], got {_describe(logits)}"
        )
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    log_sum = jax.nn.logsumexp(logits, axis=-1)
    return coeff * jnp.square(log_sum).sum() / max(logits.shape[0], 1)


def update_expert_bias(expert_bias: jax.Array, group_sizes: jax.Array, rate: float) -> jax.Array:
    """DeepSeek-V3's balancing without an auxiliary loss: ``bias + rate * sign(mean - load)``.

    Loads are compared with their mean as integers, so a load equal to the mean moves nothing and
    the comparison is exact at any size. Call it once per optimizer step with the counts of the
    whole global batch.

    Args:
      expert_bias: f32 [..., E].
      group_sizes: integer [..., E], routed slots per expert.
      rate: step of the bias; 0.001 in DeepSeek-V3.

    Returns:
      f32 [..., E], the new bias.

    Raises:
      ValueError: shapes differ, or ``group_sizes`` is not integer.

    Source: DeepSeek-V3, arXiv:2412.19437, section 2.1.2; Wang et al., arXiv:2408.15664.
    """
    if expert_bias.shape != group_sizes.shape or expert_bias.ndim == 0:
        raise ValueError(
            "update_expert_bias: expert_bias and group_sizes must both be [..., E], got "
            f"{_describe(expert_bias)} and {_describe(group_sizes)}"
        )
    if not jnp.issubdtype(group_sizes.dtype, jnp.integer):
        raise ValueError(
            f"update_expert_bias: group_sizes must be integer, got {_describe(group_sizes)}"
        )
    num_experts = group_sizes.shape[-1]
    # mean = quotient + remainder / E, built from per-expert parts so that no product overflows.
    low = (group_sizes % num_experts).sum(axis=-1, keepdims=True)
    quotient = (group_sizes // num_experts).sum(axis=-1, keepdims=True) + low // num_experts
    below = (group_sizes < quotient) | ((group_sizes == quotient) & (low % num_experts > 0))
    step = below.astype(jnp.int32) - (group_sizes > quotient).astype(jnp.int32)
    return expert_bias + jnp.asarray(rate, expert_bias.dtype) * step.astype(expert_bias.dtype)


def _check_balance_arguments(
    scores: jax.Array,
    experts: jax.Array | None,
    group_sizes: jax.Array | None,
    num_experts: int,
) -> None:
    def fail(rule: str, array: jax.Array) -> None:
        raise ValueError(f"load_balancing_loss: {rule}, got {_describe(array)}")

    if scores.ndim != 2 or scores.shape[1] != num_experts:
        fail(f"scores must be [T, {num_experts}]", scores)
    if not jnp.issubdtype(scores.dtype, jnp.floating):
        fail("scores must be floating-point", scores)
    if experts is None and group_sizes is None:
        raise ValueError("load_balancing_loss: give experts or group_sizes, got neither")
    if experts is not None:
        if experts.ndim != 2 or experts.shape[0] != scores.shape[0]:
            fail(f"experts must be [{scores.shape[0]}, k] to fit scores", experts)
        if not jnp.issubdtype(experts.dtype, jnp.integer):
            fail("experts must be integer", experts)
    if group_sizes is not None:
        if group_sizes.shape != (num_experts,):
            fail(f"group_sizes must be [{num_experts}]", group_sizes)


def _describe(array: jax.Array) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"

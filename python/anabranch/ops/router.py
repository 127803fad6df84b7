# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Top-k routing: which experts a token goes to, and with what weight."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from anabranch import _register

SCORE_FUNCTIONS = ("softmax", "softmax_topk", "sigmoid", "sqrtsoftplus")
_GROUP_SCORES = {"max": 1, "top2": 2}


class Routing(NamedTuple):
    """The choice of a router for T tokens.

    Attributes:
      experts: i32 [T, k], distinct expert ids in descending order of their (biased) score. A
        caller may set slots to -1, which routes them nowhere.
      weights: f32 [T, k], what each chosen expert's output is multiplied by.
      scores: f32 [T, E], unbiased scores of all experts.
    """

    experts: jax.Array
    weights: jax.Array
    scores: jax.Array


def topk_router(
    logits: jax.Array,
    topk: int,
    *,
    score_function: str = "softmax",
    expert_bias: jax.Array | None = None,
    num_groups: int = 1,
    group_topk: int = 1,
    group_score: str | int = "top2",
    normalize: bool = False,
    scaling_factor: float = 1.0,
) -> Routing:
    """Chooses ``topk`` experts for each token.

    Scores are computed in f32. The bias is added for the choice only and never weighs; ties go to
    the lowest index; a NaN ranks above every number, so it shows in the weights of its own token,
    whose ids stay distinct and in range. Gradients reach ``logits`` through ``weights`` and
    ``scores``; ``expert_bias`` gets none.

    Args:
      logits: floating-point [T, E].
      topk: k, experts per token.
      score_function: "softmax" (over E, then top-k: Qwen3-MoE, OLMoE, Mixtral with ``normalize``,
        DeepSeek-V2), "softmax_topk" (top-k of the logits, then softmax over the k: GPT-OSS),
        "sigmoid" (DeepSeek-V3) or "sqrtsoftplus" (DeepSeek-V4).
      expert_bias: f32 [E], the selection bias of DeepSeek-V3 (arXiv:2408.15664).
      num_groups: the E experts form this many equal, contiguous groups.
      group_topk: a token may only choose from its ``group_topk`` best groups; the others count as
        minus infinity.
      group_score: value of a group: "top2" = sum of its two best (DeepSeek-V3), "max" = its best
        (DeepSeek-V2), or n = sum of its n best biased scores.
      normalize: divide a token's weights by their sum (guarded only against zero).
      scaling_factor: multiplies the weights last.

    Returns:
      ``Routing(experts, weights, scores)``; for both softmax kinds ``scores`` is the softmax over
      E.

    Raises:
      ValueError: a shape, dtype or option does not fit, or the groups cannot hold k experts.
    """
    options = _check(logits, topk, score_function, expert_bias, num_groups, group_topk, group_score)
    options = dataclasses.replace(
        options, normalize=bool(normalize), scaling_factor=float(scaling_factor)
    )
    if logits.dtype not in (jnp.float32, jnp.bfloat16):
        logits = logits.astype(jnp.float32)
    if expert_bias is None:
        expert_bias = jnp.zeros(logits.shape[1], jnp.float32)
    logits, expert_bias = _register.align(logits, expert_bias.astype(jnp.float32))
    return _router(logits, expert_bias, options)


@dataclasses.dataclass(frozen=True)
class _Options:
    topk: int
    score_function: str
    num_groups: int
    group_topk: int
    group_score: int
    normalize: bool = False
    scaling_factor: float = 1.0


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _router(logits: jax.Array, expert_bias: jax.Array, options: _Options) -> Routing:
    tokens, num_experts = logits.shape
    results = (
        jax.ShapeDtypeStruct((tokens, options.topk), jnp.int32),
        jax.ShapeDtypeStruct((tokens, options.topk), jnp.float32),
        jax.ShapeDtypeStruct((tokens, num_experts), jnp.float32),
    )
    outputs = _register.call("router", results, logits, expert_bias, **dataclasses.asdict(options))
    return Routing(*outputs)


def _router_forward(
    logits: jax.Array, expert_bias: jax.Array, options: _Options
) -> tuple[Routing, tuple[jax.Array, jax.Array]]:
    routing = _router(logits, expert_bias, options)
    return routing, (logits, routing.experts)


def _router_backward(
    options: _Options, saved: tuple[jax.Array, jax.Array], cotangents: Routing
) -> tuple[jax.Array, None]:
    logits, experts = saved
    d_logits = _register.call(
        "router_grad",
        jax.ShapeDtypeStruct(logits.shape, logits.dtype),
        logits,
        experts,
        cotangents.weights,
        cotangents.scores,
        **dataclasses.asdict(options),
    )
    return d_logits, None


_router.defvjp(_router_forward, _router_backward)


def _check(
    logits: jax.Array,
    topk: int,
    score_function: str,
    expert_bias: jax.Array | None,
    num_groups: int,
    group_topk: int,
    group_score: str | int,
) -> _Options:
    def fail(message: str) -> None:
        raise ValueError(f"topk_router: {message}")

    if logits.ndim != 2 or not jnp.issubdtype(logits.dtype, jnp.floating):
        fail(f"logits must be floating-point [T, E], got {logits.dtype}{list(logits.shape)}")
    num_experts = logits.shape[1]
    if expert_bias is not None and (
        expert_bias.shape != (num_experts,) or not jnp.issubdtype(expert_bias.dtype, jnp.floating)
    ):
        fail(
            f"expert_bias must be float32[{num_experts}] to fit logits {list(logits.shape)}, got "
            f"{expert_bias.dtype}{list(expert_bias.shape)}"
        )
    if score_function not in SCORE_FUNCTIONS:
        fail(f"score_function must be one of {SCORE_FUNCTIONS}, got {score_function!r}")
    if not 1 <= topk <= num_experts:
        fail(f"topk must be in [1, {num_experts}] for logits {list(logits.shape)}, got {topk}")
    if num_groups < 1 or num_experts % num_groups:
        fail(f"num_groups must divide the {num_experts} experts, got {num_groups}")
    if not 1 <= group_topk <= num_groups:
        fail(f"group_topk must be in [1, num_groups={num_groups}], got {group_topk}")
    size = num_experts // num_groups
    if topk > group_topk * size:
        fail(
            f"topk={topk} exceeds the {group_topk * size} experts of group_topk={group_topk} "
            f"groups of {size}"
        )
    count = _GROUP_SCORES.get(group_score) if isinstance(group_score, str) else group_score
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        fail(f"group_score must be 'top2', 'max' or an integer >= 1, got {group_score!r}")
    if group_topk < num_groups and count > size:
        fail(f"group_score={group_score!r} needs {count} experts in each group of {size}")
    return _Options(int(topk), score_function, int(num_groups), int(group_topk), int(count))

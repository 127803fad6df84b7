# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Routing rules of published models, written in f64 numpy after their authors' code.

Each function takes logits [T, E] and returns (experts [T, k], weights [T, k], margin [T]): the
margin is how far a token is from another choice, so that a test can leave out tokens that rounding
decides. Nothing here is shared with the library.
"""

from __future__ import annotations

import numpy as np

Routed = tuple[np.ndarray, np.ndarray, np.ndarray]


def softmax(x: np.ndarray) -> np.ndarray:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Logistic function."""
    return 1 / (1 + np.exp(-x))


def top(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the largest, largest first, and the smallest gap between neighbours in rank."""
    order = np.argsort(-values, axis=-1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=-1)[..., : count + 1]
    ranked = np.where(np.isinf(ranked), -1e9, ranked)
    gaps = -np.diff(ranked, axis=-1)
    return order[..., :count], gaps.min(axis=-1, initial=np.inf)


def take(values: np.ndarray, experts: np.ndarray) -> np.ndarray:
    """values[t, experts[t, j]]."""
    return np.take_along_axis(values, experts, axis=-1)


def limit_to_groups(
    scores: np.ndarray, group_scores: np.ndarray, group_topk: int
) -> tuple[np.ndarray, np.ndarray]:
    """Scores with the other groups at -inf, and the margin of the choice of groups."""
    tokens, num_groups = group_scores.shape
    groups, margin = top(group_scores, group_topk)
    mask = np.ones((tokens, num_groups), bool)
    np.put_along_axis(mask, groups, False, axis=1)
    masked = np.where(mask[:, :, None], -np.inf, scores.reshape(tokens, num_groups, -1))
    return masked.reshape(tokens, -1), margin


def deepseek_v3(logits: np.ndarray, bias: np.ndarray, k: int = 8) -> Routed:
    """Gate.forward of DeepSeek-V3's inference/model.py: 8 groups, 4 of them, route_scale 2.5."""
    original = sigmoid(logits)
    scores = original + bias
    grouped = scores.reshape(len(scores), 8, -1)
    group_scores = np.sort(grouped, axis=-1)[..., -2:].sum(axis=-1)
    scores, group_margin = limit_to_groups(scores, group_scores, 4)
    experts, margin = top(scores, k)
    weights = take(original, experts)
    weights = weights / weights.sum(axis=-1, keepdims=True) * 2.5
    return experts, weights, np.minimum(margin, group_margin)


def deepseek_v2(logits: np.ndarray, k: int = 6) -> Routed:
    """MoEGate of DeepSeek-V2: softmax, 8 groups by their maximum, 3 of them, scaled by 16."""
    scores = softmax(logits)
    group_scores = scores.reshape(len(scores), 8, -1).max(axis=-1)
    masked, group_margin = limit_to_groups(scores, group_scores, 3)
    experts, margin = top(masked, k)
    return experts, take(scores, experts) * 16, np.minimum(margin, group_margin)


def deepseek_v4(logits: np.ndarray, bias: np.ndarray, k: int = 6) -> Routed:
    """The square root of softplus, biased choice, normalised, scaled by 1.5."""
    scores = np.sqrt(np.logaddexp(0, logits))
    experts, margin = top(scores + bias, k)
    weights = take(scores, experts)
    return experts, weights / weights.sum(axis=-1, keepdims=True) * 1.5, margin


def mixtral(logits: np.ndarray, k: int = 2) -> Routed:
    """MixtralSparseMoeBlock: softmax, top-2, divided by their sum. Also Qwen3-MoE with k = 8."""
    scores = softmax(logits)
    experts, margin = top(scores, k)
    weights = take(scores, experts)
    return experts, weights / weights.sum(axis=-1, keepdims=True), margin


def olmoe(logits: np.ndarray, k: int = 8) -> Routed:
    """OlmoeSparseMoeBlock with norm_topk_prob false: the softmax probabilities themselves."""
    scores = softmax(logits)
    experts, margin = top(scores, k)
    return experts, take(scores, experts), margin


def gpt_oss(logits: np.ndarray, k: int = 4) -> Routed:
    """GptOssTopKRouter: top-k of the logits, then softmax over those."""
    experts, margin = top(logits, k)
    return experts, softmax(take(logits, experts)), margin


def minimax_m2(logits: np.ndarray, bias: np.ndarray, k: int = 8) -> Routed:
    """Sigmoid, biased choice, normalised, unscaled, no groups."""
    scores = sigmoid(logits)
    experts, margin = top(scores + bias, k)
    weights = take(scores, experts)
    return experts, weights / weights.sum(axis=-1, keepdims=True), margin

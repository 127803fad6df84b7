# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The routed layer that both our worker and PyTorch's run alone: same numbers on both sides."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

_CHECKED_TOKENS = 8


class Inputs(NamedTuple):
    """x, y_grad [T,H], ids i32 [T,k], weights [T,k], w_gate, w_up [E,H,F], w_down [E,F,H]; all f32 but ids."""

    x: np.ndarray
    y_grad: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    w_gate: np.ndarray
    w_up: np.ndarray
    w_down: np.ndarray


def make(shape: dict[str, int]) -> Inputs:
    """Random inputs of a layer with the shape's T, H, F, E and k, the same on every call."""
    tokens, hidden, width, experts, topk = (shape[letter] for letter in "THFEk")
    rng = np.random.default_rng(0)
    x, y_grad = (rng.normal(size=(tokens, hidden)).astype(np.float32) for _ in range(2))
    ids = np.argsort(rng.random((tokens, experts)), axis=1)[:, :topk].astype(np.int32)
    weights = rng.dirichlet(np.ones(topk), tokens).astype(np.float32)
    # Hundreds of millions of draws would take longer than the measurement; the period is odd: no pattern.
    draws = (rng.normal(size=(1 << 16) - 1) * hidden**-0.5).astype(np.float32)
    matrices = [
        np.resize(np.roll(draws, shift), (experts, *matrix))
        for shift, matrix in enumerate(((hidden, width), (hidden, width), (width, hidden)))
    ]
    return Inputs(x, y_grad, ids, weights, *matrices)


def error(inputs: Inputs, y: np.ndarray) -> float:
    """Largest error of a few rows of y [T,H] relative to the largest value, against sums in f64."""
    chosen = np.linspace(0, len(inputs.x) - 1, _CHECKED_TOKENS).astype(int)
    expected = []
    for token in chosen:
        x = inputs.x[token].astype(np.float64)
        total = np.zeros_like(x)
        for expert, weight in zip(inputs.ids[token], inputs.weights[token], strict=True):
            gate, up = x @ inputs.w_gate[expert], x @ inputs.w_up[expert]
            total += weight * ((gate / (1 + np.exp(-gate)) * up) @ inputs.w_down[expert])
        expected.append(total)
    want = np.stack(expected)
    return float(np.abs(np.asarray(y)[chosen] - want).max() / np.abs(want).max())


def check(inputs: Inputs, y: np.ndarray) -> dict[str, Any]:
    """Refuses a wrong result; returns its error."""
    worst = error(inputs, y)
    # Inputs, weights, gate, up, their product and the result are each rounded to bf16 on the way.
    if not worst <= 6 * 2.0**-8:
        raise RuntimeError(f"the layer's result is wrong: relative error {worst:.3e}")
    return {"max_error": worst}

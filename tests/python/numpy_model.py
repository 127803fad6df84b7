# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The decoder once more in plain numpy and f64, written from the published descriptions.

It shares no code with anabranch: a token, a head and an expert at a time where that is simplest.
"""

from __future__ import annotations

import math

import numpy as np


def rms_norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def ffn(x, p):
    gate = x @ p["w_gate"]
    return (gate * sigmoid(gate) * (x @ p["w_up"])) @ p["w_down"]


def yarn_frequencies(size, rotary):
    frequencies = []
    for pair in range(size // 2):
        plain = rotary.theta ** (-2 * pair / size)
        if rotary.factor <= 1:
            frequencies.append(plain)
            continue
        ends = []
        for rotations in (rotary.beta_fast, rotary.beta_slow):
            length = rotary.original_length / (2 * math.pi * rotations)
            ends.append(size * math.log(length) / (2 * math.log(rotary.theta)))
        low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), size - 1)
        share = min(max((pair - low) / max(high - low, 1e-3), 0), 1)
        frequencies.append(plain * (1 - share) + plain / rotary.factor * share)
    return frequencies


def rotate(vector, position, rotary, interleaved):
    """One head's vector at one position."""
    size, out = len(vector), np.array(vector)
    for pair, frequency in enumerate(yarn_frequencies(size, rotary)):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + size // 2)
        turn = complex(vector[a], vector[b]) * np.exp(1j * position * frequency)
        out[a], out[b] = turn.real, turn.imag
    return out


def attend(query, key, value, scale):
    """query, key [S, D], value [S, Dv] of one head; causal."""
    out = []
    for s in range(len(query)):
        out.append(softmax(scale * key[: s + 1] @ query[s]) @ value[: s + 1])
    return np.array(out)


def temperature(rotary, coefficient):
    return 1.0 if rotary.factor <= 1 else 0.1 * coefficient * math.log(rotary.factor) + 1


def mla(x, p, c, rotary, epsilon, positions=None):
    """Multi-head latent attention of one sequence [S, H]; positions count from 0 unless given."""
    where = range(len(x)) if positions is None else positions
    nope, rope = c.nope_head_size, c.rope_head_size
    latent = rms_norm(x @ p["q_a"], p["q_a_norm"], epsilon) @ p["q_b"] if "q_a" in p else x @ p["q"]
    compressed = x @ p["kv_a"]
    expanded = rms_norm(compressed[:, : c.kv_lora_rank], p["kv_a_norm"], epsilon) @ p["kv_b"]
    turning = compressed[:, c.kv_lora_rank :]
    shared_key = [rotate(v, s, rotary, True) for s, v in zip(where, turning, strict=True)]
    scale = (nope + rope) ** -0.5 * temperature(rotary, rotary.mscale_all_dim) ** 2
    heads = []
    for n in range(c.num_heads):
        q = latent[:, n * (nope + rope) : (n + 1) * (nope + rope)]
        turned = [rotate(v[nope:], s, rotary, True) for s, v in zip(where, q, strict=True)]
        q = np.concatenate([q[:, :nope], turned], axis=1)
        kv = expanded[:, n * (nope + c.value_head_size) : (n + 1) * (nope + c.value_head_size)]
        k = np.concatenate([kv[:, :nope], shared_key], axis=1)
        heads.append(attend(q, k, kv[:, nope:], scale))
    return np.concatenate(heads, axis=1) @ p["o"]


def gqa(x, p, c, rotary, epsilon):
    """Grouped-query attention of one sequence [S, H]."""
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    if c.qk_norm == "full":
        q, k = rms_norm(q, p["q_norm"], epsilon), rms_norm(k, p["k_norm"], epsilon)
    heads, size = [], c.head_size
    for n in range(c.num_heads):
        m = n // (c.num_heads // c.num_kv_heads)
        qn, kn = q[:, n * size : (n + 1) * size], k[:, m * size : (m + 1) * size]
        if c.qk_norm == "head":
            qn, kn = rms_norm(qn, p["q_norm"], epsilon), rms_norm(kn, p["k_norm"], epsilon)
        qn, kn = (
            np.array([rotate(v, s, rotary, False) for s, v in enumerate(part)]) for part in (qn, kn)
        )
        heads.append(attend(qn, kn, v[:, m * size : (m + 1) * size], size**-0.5))
    return np.concatenate(heads, axis=1) @ p["o"]


def route(logits, bias, c):
    """One token: (chosen experts, their weights, smallest margin of any choice)."""
    if c.score_function == "sigmoid":
        scores = sigmoid(logits)
    else:
        scores = softmax(logits)
    chosen_by = scores + (0 if bias is None else bias)
    margins = []
    if c.num_groups > 1:
        groups = chosen_by.reshape(c.num_groups, -1)
        totals = np.sort(groups, axis=1)[:, -2:].sum(1)
        order = np.argsort(-totals, kind="stable")
        margins.append(totals[order[c.group_topk - 1]] - totals[order[c.group_topk]])
        keep = np.isin(np.arange(c.num_groups), order[: c.group_topk])
        chosen_by = np.where(keep[:, None], groups, -np.inf).reshape(-1)
    order = np.argsort(-chosen_by, kind="stable")
    margins.append(chosen_by[order[c.topk - 1]] - chosen_by[order[c.topk]])
    chosen = order[: c.topk]
    weights = scores[chosen]
    if c.normalize:
        weights = weights / weights.sum()
    return chosen, weights * c.scaling_factor, min(margins)


def moe(x, p, c, counts, margins):
    out = np.zeros_like(x)
    for t, vector in enumerate(x):
        chosen, weights, margin = route(vector @ p["router"], p.get("expert_bias"), c)
        margins.append(margin)
        for e, weight in zip(chosen, weights, strict=True):
            counts[e] += 1
            expert = {name: p[name][e] for name in ("w_gate", "w_up", "w_down")}
            out[t] += weight * ffn(vector, expert)
    return out + ffn(x, p["shared"]) if "shared" in p else out


def forward(params, tokens, config):
    """(logits [B, S, V], counts [MoE layers, E], smallest routing margin) for tokens [B, S]."""
    block = mla if config.attention.kind == "mla" else gqa
    counts = np.zeros((config.num_moe_layers, config.num_experts), int)
    all_logits, margins = [], [np.inf]
    for sequence in tokens:
        x = params["embedding"][sequence]
        for index, p in enumerate(params["layers"]):
            normed = rms_norm(x, p["attention_norm"], config.norm_epsilon)
            x = x + block(
                normed, p["attention"], config.attention, config.rotary, config.norm_epsilon
            )
            normed = rms_norm(x, p["ffn_norm"], config.norm_epsilon)
            if "ffn" in p:
                x = x + ffn(normed, p["ffn"])
            else:
                layer_counts = counts[index - config.num_dense_layers]
                x = x + moe(normed, p["moe"], config, layer_counts, margins)
        x = rms_norm(x, params["final_norm"], config.norm_epsilon)
        all_logits.append(x @ params.get("head", params["embedding"].T))
    return np.array(all_logits), counts, min(margins)


def cross_entropy(logits, labels):
    """Mean over labels that are not -1, in nats."""
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    shares = softmax(logits)[np.arange(len(labels)), labels]
    return -np.log(shares[labels >= 0]).sum() / max((labels >= 0).sum(), 1)

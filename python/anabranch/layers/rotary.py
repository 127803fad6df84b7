# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding, plain and stretched by YaRN."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anabranch.layers.config import RotaryConfig, yarn_temperature


def inverse_frequencies(size: int, config: RotaryConfig) -> np.ndarray:
    """Returns the angle per position of each of the `size / 2` pairs, f64 [size / 2].

    With `config.factor` above 1, YaRN "by parts" (arXiv 2309.00071, section 3.2): pairs that turn more
    than `beta_fast` times within the original length keep their frequency, pairs that turn less than
    `beta_slow` times are slowed by the factor, and those between are mixed linearly.
    """
    exponents = np.arange(0, size, 2, dtype=np.float64) / size
    plain = config.theta**-exponents
    if config.factor <= 1.0:
        return plain
    low = math.floor(_pair_of_rotations(config.beta_fast, size, config))
    high = math.ceil(_pair_of_rotations(config.beta_slow, size, config))
    low, high = max(low, 0), min(high, size - 1)
    ramp = (np.arange(size // 2) - low) / (high - low if high > low else 1e-3)
    slowed_share = np.clip(ramp, 0.0, 1.0)
    return plain / config.factor * slowed_share + plain * (1.0 - slowed_share)


def softmax_scale(query_key_size: int, config: RotaryConfig) -> float:
    """Returns `query_key_size**-0.5` times the square of YaRN's temperature for all dimensions.

    As in DeepSeek's published code: the temperature is that of `mscale_all_dim`, at every position.
    """
    return query_key_size**-0.5 * yarn_temperature(config.factor, config.mscale_all_dim) ** 2


def rotary_table(
    positions: jax.Array, size: int, config: RotaryConfig
) -> tuple[jax.Array, jax.Array]:
    """Returns cosine and sine, f32 [..., size / 2], of each pair's angle at `positions` [...].

    Both carry the ratio of the temperatures of `mscale` and `mscale_all_dim` (1 when they agree).
    """
    frequencies = jnp.asarray(inverse_frequencies(size, config), jnp.float32)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    ratio = yarn_temperature(config.factor, config.mscale) / yarn_temperature(
        config.factor, config.mscale_all_dim
    )
    return jnp.cos(angles) * ratio, jnp.sin(angles) * ratio


def apply_rotary(
    x: jax.Array, table: tuple[jax.Array, jax.Array], *, interleaved: bool
) -> jax.Array:
    """Returns x [B, S, N, D] with every pair of elements turned by its angle, in x's type.

    `table` is that of `rotary_table`, [B, S, D / 2] each. Pairs are elements (2i, 2i + 1) when
    `interleaved` (DeepSeek), else (i, i + D / 2) (Mixtral, Qwen, OLMoE).
    """
    return _turned(interleaved, x, *table)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _turned(interleaved: bool, x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    # (a, b) becomes (a cos - b sin, b cos + a sin): each element's product with the cosine and its
    # partner's with the signed sine. XLA has nothing to join and makes one loop of it.
    axis = -1 if interleaved else -2
    shape = (*x.shape[:-1], -1, 2) if interleaved else (*x.shape[:-1], 2, x.shape[-1] // 2)
    pairs = x.astype(jnp.float32).reshape(shape)
    cos, sin = (jnp.expand_dims(part[..., None, :], axis) for part in (cos, sin))
    signs = jnp.array([-1.0, 1.0], jnp.float32)
    sines = sin * (signs if interleaved else signs[:, None])
    return (pairs * cos + jnp.flip(pairs, axis) * sines).reshape(x.shape).astype(x.dtype)


def _turned_forward(interleaved: bool, x: jax.Array, cos: jax.Array, sin: jax.Array) -> Any:
    return _turned(interleaved, x, cos, sin), (cos, sin)


def _turned_backward(interleaved: bool, table: Any, grad: jax.Array) -> tuple[Any, ...]:
    cos, sin = table  # turned back; the table, of positions, has no gradient
    return _turned(interleaved, grad, cos, -sin), None, None


_turned.defvjp(_turned_forward, _turned_backward)


def _pair_of_rotations(rotations: float, size: int, config: RotaryConfig) -> float:
    """The (fractional) pair that turns `rotations` times within the original length."""
    wavelength = config.original_length / (rotations * 2 * math.pi)
    return size * math.log(wavelength) / (2 * math.log(config.theta))

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Keys of stochastic rounding: pure functions of what a draw is for."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def key_words(key: Any) -> jax.Array:
    """i32 [4] for the engine: two key words, first row, first group (0 unless given).

    `key` is None (zeros), a JAX PRNG key, an int, or 2 or 4 words of 32 bits. ValueError otherwise.
    """
    if key is None:
        return jnp.zeros(4, jnp.int32)
    if isinstance(key, int):
        key = jnp.asarray([key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF], jnp.uint32)
    key = jnp.asarray(key)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        words = jax.random.key_data(key)
        key = words[..., :2] ^ words[..., 2:] if words.shape[-1] == 4 else words
    if key.shape not in ((2,), (4,)) or key.dtype not in (jnp.uint32, jnp.int32):
        raise ValueError(
            f"quantize: key {key.dtype.name}{[*key.shape]}; must be one PRNG key, an int, or uint32 [2]"
        )
    words = jax.lax.bitcast_convert_type(key, jnp.int32)
    return words if key.shape == (4,) else jnp.concatenate([words, jnp.zeros(2, jnp.int32)])


def derive_key(key: jax.Array, *what: Any) -> jax.Array:
    """uint32 [2]: a key for `what` (up to 3 integers, static or traced) under `key`, by Philox.

    For example (step, layer, tensor) under the key of a run's seed.
    """
    words = jax.lax.bitcast_convert_type(key_words(key), jnp.uint32)
    counter = [jnp.asarray(word).astype(jnp.uint32) for word in what]
    counter += [jnp.zeros((), jnp.uint32)] * (4 - len(counter))
    return jnp.stack(_philox(counter, words[0], words[1])[:2])


def _philox(counter: list[jax.Array], key0: jax.Array, key1: jax.Array) -> list[jax.Array]:
    """Philox4x32-10 (Salmon et al., SC'11), as in src/base/philox.h."""
    c0, c1, c2, c3 = counter
    for _ in range(10):
        high0, low0 = _multiply(c0, 0xD2511F53)
        high1, low1 = _multiply(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = key0 + jnp.uint32(0x9E3779B9), key1 + jnp.uint32(0xBB67AE85)
    return [c0, c1, c2, c3]


def _multiply(a: jax.Array, b: int) -> tuple[jax.Array, jax.Array]:
    """High and low word of a product of two words, from four products of half words."""
    a0, a1 = a & 0xFFFF, a >> 16
    b0, b1 = jnp.uint32(b & 0xFFFF), jnp.uint32(b >> 16)
    low, middle0, middle1 = a0 * b0, a1 * b0, a0 * b1
    carry = (low >> 16) + (middle0 & 0xFFFF) + (middle1 & 0xFFFF)
    high = a1 * b1 + (middle0 >> 16) + (middle1 >> 16) + (carry >> 16)
    return high, a * jnp.uint32(b)

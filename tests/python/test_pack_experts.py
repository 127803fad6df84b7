# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""pack_experts against numpy, and moe_ffn with panels against moe_ffn without: the same bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anabranch as ab
from anabranch import _register


def weights(
    experts: int, hidden: int, width: int, dtype: str = "bfloat16"
) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(1)
    shapes = ((experts, hidden, width),) * 2 + ((experts, width, hidden),)
    return tuple(jnp.asarray(rng.normal(size=shape) * hidden**-0.5, dtype) for shape in shapes)


def panels_of(matrix: np.ndarray) -> np.ndarray:
    """Panels of 64 columns of a [K, N] matrix, pairs of k side by side."""
    rows, columns = matrix.shape
    padded = np.zeros((rows + rows % 2, columns + -columns % 64), matrix.dtype)
    padded[:rows, :columns] = matrix
    pairs = padded.reshape(len(padded) // 2, 2, -1, 64)
    return pairs.transpose(2, 0, 3, 1).reshape(-1, len(padded), 64)


def even_rows(matrix: np.ndarray) -> np.ndarray:
    return np.pad(matrix, ((0, len(matrix) % 2), (0, 0)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("hidden", "width"), [(64, 32), (70, 45), (5, 3)])
def test_panels_equal_numpy(dtype: str, hidden: int, width: int) -> None:
    plain = weights(2, hidden, width, dtype)
    packed = jax.jit(ab.pack_experts)(*plain)
    gate, up, down = (np.asarray(w.astype(jnp.bfloat16).astype(jnp.float32)) for w in plain)
    for e in range(2):
        both = np.zeros((hidden, -(-width // 32), 2, 32), np.float32)
        for side, matrix in enumerate((gate[e], up[e])):
            padded = np.pad(matrix, ((0, 0), (0, -width % 32)))
            both[:, :, side] = padded.reshape(hidden, -1, 32)
        transposed = np.concatenate([even_rows(gate[e].T), even_rows(up[e].T)])
        want = (panels_of(both.reshape(hidden, -1)), panels_of(down[e]), panels_of(down[e].T),
                panels_of(transposed))  # fmt: skip
        for name, have, panels in zip(ab.PackedExperts._fields, packed, want, strict=True):
            np.testing.assert_array_equal(np.asarray(have[e], np.float32), panels, err_msg=name)


def run(packs: bool, plain: tuple[jax.Array, ...], tokens: int) -> Any:
    hidden = plain[0].shape[1]
    rng = np.random.default_rng(2)
    x, y_grad = (jnp.asarray(rng.normal(size=(tokens, hidden)), jnp.bfloat16) for _ in range(2))
    ids = jnp.asarray(np.argsort(rng.random((tokens, 5)), axis=1)[:, :2], jnp.int32)
    scores = jnp.asarray(rng.random((tokens, 2)), jnp.float32)

    def layer(x: jax.Array, scores: jax.Array, *w: jax.Array) -> jax.Array:
        packed = ab.pack_experts(*w) if packs else None
        return ab.moe_ffn(x, ab.Routing(ids, scores, None), *w, packed=packed)

    @jax.jit
    def step(*args: jax.Array) -> Any:
        y, pullback = jax.vjp(jax.checkpoint(layer), *args)
        return y, pullback(y_grad)

    return step(x, scores, *plain)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("hidden", "width"), [(64, 32), (70, 45)])
def test_panels_change_no_bit_of_moe_ffn_and_its_gradients(
    dtype: str, hidden: int, width: int
) -> None:
    plain = weights(5, hidden, width, dtype)
    for have, want in zip(
        jax.tree.leaves(run(True, plain, 33)), jax.tree.leaves(run(False, plain, 33)), strict=True
    ):
        assert have.dtype == want.dtype
        assert have.tobytes() == want.tobytes()
        assert np.abs(np.asarray(want, np.float32)).max() > 0


def test_stale_panels_are_what_is_multiplied() -> None:
    old, new = weights(3, 8, 6), tuple(2 * w for w in weights(3, 8, 6))
    routing = ab.Routing(jnp.array([[0, 2]], jnp.int32), jnp.ones((1, 2)), None)
    x = jnp.ones((1, 8), jnp.bfloat16)
    stale = ab.moe_ffn(x, routing, *new, packed=ab.pack_experts(*old))
    np.testing.assert_array_equal(stale, ab.moe_ffn(x, routing, *old))


def test_errors_give_both_shapes() -> None:
    plain = weights(3, 8, 6)
    routing = ab.Routing(jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2)), None)
    x = jnp.ones((1, 8), jnp.bfloat16)
    packed = ab.pack_experts(*plain)
    with pytest.raises(ValueError, match=r"w_down bfloat16\[3, 8, 6\]; must be \[E, H, F\]"):
        ab.pack_experts(plain[0], plain[1], plain[0])
    with pytest.raises(
        ValueError, match=r"packed.down bfloat16\[3, 1, 8, 64\] must be bfloat16\[3, 1, 6"
    ):
        ab.moe_ffn(x, routing, *plain, packed=packed._replace(down=packed.down_transposed))
    with pytest.raises(ValueError, match=r"packed experts are bf16, x is float32\[1, 8\]"):
        wide = tuple(w.astype(jnp.float32) for w in plain)
        ab.moe_ffn(x.astype(jnp.float32), routing, *wide, packed=packed)
    with pytest.raises(ValueError, match="packed goes with the bf16 engine"):
        ab.moe_ffn(x, routing, *plain, packed=packed, implementation="unfused")


def test_the_engine_wants_both_arrays_of_panels_or_none() -> None:
    plain = weights(3, 8, 6)
    packed = ab.pack_experts(*plain)
    plan = ab.ragged_plan(jnp.zeros((1, 2), jnp.int32), 3)
    x, scores = jnp.ones((1, 8), jnp.bfloat16), jnp.ones((1, 2), jnp.float32)
    results = [jax.ShapeDtypeStruct((1, 8), x.dtype), jax.ShapeDtypeStruct((0, 12), x.dtype)]
    operands = (x, scores, *plain, plan.group_offsets, plan.row_token, plan.slot_row)
    for panels in ((packed.gate_up,), packed):
        with pytest.raises(
            (jax.errors.JaxRuntimeError, ValueError),
            match=f"moe_ffn: {len(panels)} arrays of panels; must be 0",
        ):
            jax.block_until_ready(
                _register.call("moe_ffn", results, *operands, *panels, activation=0)
            )

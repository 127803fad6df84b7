# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import anabranch as ab
import quantize_oracle as oracle
from anabranch.ops.quantize import BF16, FORMATS, quantized, swizzle_scale, unswizzle_scale
from anabranch.ops.quantize.keys import derive_key

MODES = ("rceil", "floor", "even", "ceil", "float32")


def cases():
    for format, axis, mode in itertools.product(FORMATS, (-1, -2), MODES):
        if mode == "float32" and not format.startswith("fp8"):
            continue
        if mode != "rceil" and format.startswith("nvfp4"):
            continue
        yield format, axis, mode


def codes_of(data):
    return np.asarray(data).view(np.uint8)


def scales_of(scale):
    scale = np.asarray(scale)
    return scale if scale.dtype == np.float32 else scale.view(np.uint8)


def some(shape, seed=0):
    rng = np.random.default_rng(seed)
    powers = rng.integers(-12, 12, (shape[0], 1)) + rng.integers(-3, 3, (1, shape[1]))
    return (rng.normal(size=shape) * 2.0**powers).astype(np.float32)


@pytest.mark.parametrize("format, axis, mode", list(cases()))
def test_whole_tensors_match_ml_dtypes(format, axis, mode):
    x = some((70, 140))
    x[:32, :32] = 0
    q = ab.quantize(x, format, axis=axis, scale_mode=mode)
    codes, scales, tensor_scale = oracle.quantize(x, format, axis + 2, mode)
    np.testing.assert_array_equal(codes_of(q.data), codes)
    np.testing.assert_array_equal(scales_of(q.scale), scales)
    if tensor_scale is not None:
        assert q.tensor_scale == tensor_scale


# Each bf16 number in the company of the largest element, so that the scale is 1.
@pytest.mark.parametrize("format", ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp4"))
def test_every_bf16_rounds_as_ml_dtypes_does(format):
    values = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    largest = oracle.ELEMENTS[format][1]
    inside = values[np.abs(values) <= largest]  # NaN is not
    x = np.stack([inside, np.full_like(inside, largest)])
    q = ab.quantize(x, format, axis=-2)
    assert (scales_of(q.scale) == 127).all()
    np.testing.assert_array_equal(codes_of(q.data)[0], oracle.cast(inside, format))
    # FLOOR keeps the scale at 1 up to the next power of two: what lies above saturates.
    beyond = values[
        (np.abs(values) > largest) & (np.abs(values) < 2 ** (1 + np.floor(np.log2(largest))))
    ]
    q = ab.quantize(beyond[None], format, axis=-2, scale_mode="floor")
    assert (scales_of(q.scale) == 127).all()
    np.testing.assert_array_equal(codes_of(q.data)[0], oracle.cast(beyond, format))


ONE_NUMBER_A_BLOCK = [c for c in cases() if c[0] in oracle.ALONG_AN_AXIS]


@pytest.mark.parametrize("format, axis, mode", ONE_NUMBER_A_BLOCK)
def test_scales_of_all_exponents_and_edge_mantissas(format, axis, mode):
    edges = [0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x600001, 0x700000, 0x7FFFFF]
    bits = (np.arange(255, dtype=np.uint32)[:, None] << 23) + np.array(edges, np.uint32)
    amax = bits.reshape(-1).view(np.float32)
    # One number a block: as a row (axis -2) or as a column (axis -1).
    x = amax[None] if axis == -2 else amax[:, None]
    codes, scales, _ = oracle.quantize(x, format, axis + 2, mode)
    q = ab.quantize(x, format, axis=axis, scale_mode=mode)
    np.testing.assert_array_equal(scales_of(q.scale), scales)
    np.testing.assert_array_equal(codes_of(q.data), codes)


@pytest.mark.parametrize("format, axis", list(itertools.product(FORMATS, (-1, -2))))
def test_groups_are_quantised_on_their_own(format, axis):
    sizes = [5, 0, 130, 1, 40]
    x = some((180, 70), seed=1)
    q = ab.grouped_quantize(x, jnp.array(sizes), format, axis=axis)
    assert q.data.shape == ((180 + 5 * 127) // 128 * 128, 70)
    np.testing.assert_array_equal(q.group_offsets, [0, 128, 128, 384, 512, 640])
    block = FORMATS[format].block if axis == -2 or FORMATS[format].square else 1
    used, used_scales = np.zeros(q.data.shape[0], bool), np.zeros(q.scale.shape[0], bool)
    row = 0
    for group, size in enumerate(sizes):
        codes, scales, tensor_scale = oracle.quantize(x[row : row + size], format, axis + 2)
        at, scale_at = int(q.group_offsets[group]), int(q.group_offsets[group]) // block
        np.testing.assert_array_equal(codes_of(q.data)[at : at + size], codes)
        np.testing.assert_array_equal(scales_of(q.scale)[scale_at : scale_at + len(scales)], scales)
        used[at : at + size] = used_scales[scale_at : scale_at + len(scales)] = True
        if tensor_scale is not None:
            assert q.tensor_scale[group] == tensor_scale
        row += size
    assert not codes_of(q.data)[~used].any()
    assert not scales_of(q.scale)[~used_scales].any()
    back = q.dequantize()
    assert back.shape == x.shape
    assert not back[row:].any()
    alone = [ab.quantize(x[:5], format, axis=axis).dequantize(), back[5:135]]
    np.testing.assert_array_equal(back[:5], alone[0])


def test_dequantize_multiplies_in_f32_down_to_subnormal_scales():
    # Scale code 0 is 2^-127, a subnormal f32, in a process where XLA flushes those to zero.
    x = np.array([[2.0**-127, -(2.0**-128)]], np.float32)
    q = jax.jit(lambda x: ab.quantize(x, "mxfp8_e4m3"))(x)
    assert scales_of(q.scale)[0, 0] == 0
    np.testing.assert_array_equal(codes_of(q.data), [[0x38, 0xB0]])
    np.testing.assert_array_equal(q.dequantize(), x)


def test_numbers_that_are_no_numbers():
    x = np.zeros((4, 64), np.float32)
    x[0, 3], x[1, 3], x[2, 3], x[3, 3] = np.nan, np.inf, -np.inf, -0.0
    x[:3, 40] = 1
    te = ab.quantize(x, "mxfp8_e4m3")
    np.testing.assert_array_equal(scales_of(te.scale)[:, 0], [0xFF, 0xFE, 0xFE, 0])
    np.testing.assert_array_equal(scales_of(te.scale)[:3, 1], [119] * 3)  # 2^-8 >= 1 / 448 = 2^-8.8
    np.testing.assert_array_equal(codes_of(te.data)[:, 3], [0x7F, 0x7E, 0xFE, 0x80])
    assert (codes_of(te.data)[0, :32] == 0x7F).all()
    strict = ab.quantize(x, "mxfp8_e4m3", infinity="strict")
    np.testing.assert_array_equal(scales_of(strict.scale)[:, 0], [0xFF, 0xFF, 0xFF, 0])
    assert np.isnan(np.asarray(strict.dequantize())[:3, :32]).all()
    assert np.isfinite(np.asarray(strict.dequantize())[:, 32:]).all()


def test_stochastic_rounding_is_a_function_of_key_and_element():
    x, key = some((64, 96)), jax.random.key(3)

    def run(x, key):
        return ab.quantize(x, "mxfp8_e4m3", rounding="stochastic", key=key).data

    first = codes_of(run(x, key))
    np.testing.assert_array_equal(first, codes_of(jax.jit(run)(x, key)))
    np.testing.assert_array_equal(first[:32], codes_of(run(x[:32], key)))
    assert (first != codes_of(run(x, jax.random.key(4)))).any()
    scale = np.asarray(ab.quantize(x, "mxfp8_e4m3").scale).astype(np.float32)
    exact = np.abs(x / np.repeat(scale, 32, 1))
    got = np.abs(first.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    grid = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    below = grid[np.searchsorted(grid, exact, side="right") - 1]
    above = grid[np.minimum(np.searchsorted(grid, exact), 126)]
    assert ((got == below) | (got == above)).all()


def test_derived_keys_are_philox():
    # Known answer of Random123 for counter and key 0.
    np.testing.assert_array_equal(
        derive_key(jnp.zeros(2, jnp.uint32), 0, 0, 0), np.array([0x6627E8D5, 0xE169C58D], np.uint32)
    )
    keys = {tuple(np.asarray(derive_key(7, *w)).tolist()) for w in np.ndindex(3, 3, 3)}
    assert len(keys) == 27


@pytest.mark.parametrize("shape, axis", [((70,), -1), ((3, 40, 50), -2), ((2, 3, 33, 20), -1)])
@pytest.mark.parametrize("format", ("mxfp8_e4m3", "nvfp4", "fp8_block_128x128"))
def test_any_rank(shape, axis, format):
    x = some((int(np.prod(shape[:-1])), shape[-1]), seed=2).reshape(shape)
    q = ab.quantize(x, format, axis=axis)
    assert q.data.shape == shape
    matrices = x.reshape(-1, *shape[-2:]) if len(shape) > 1 else x[None, None]
    if format == "nvfp4":  # one tensor scale for all
        assert q.tensor_scale == oracle.quantize(x.reshape(-1, shape[-1]), format, 1)[2]
    else:
        codes = [oracle.quantize(m, format, axis + 2)[0] for m in matrices]
        np.testing.assert_array_equal(codes_of(q.data), np.stack(codes).reshape(shape))
    # Half a step of the largest element: 2 of 6, or 16 of 448.
    assert np.abs(np.asarray(q.dequantize()) - x).max() <= np.abs(x).max() / 6


def test_transformations_of_jax():
    x = some((132, 64)).reshape(4, 33, 64).astype(jnp.bfloat16)
    each = jax.vmap(lambda m: ab.quantize(m, "mxfp8_e4m3", axis=-2))(x)
    together = ab.quantize(x, "mxfp8_e4m3", axis=-2)
    np.testing.assert_array_equal(codes_of(each.data), codes_of(together.data))
    np.testing.assert_array_equal(scales_of(each.scale), scales_of(together.scale))
    doubled = jax.jit(lambda q: q.dequantize(jnp.bfloat16) * 2)(together)
    np.testing.assert_array_equal(doubled, 2 * together.dequantize(jnp.bfloat16))


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (2, 7, 32)])
def test_four_bit_elements_are_those_of_xla(shape):
    codes = jnp.asarray(np.random.default_rng(0).integers(0, 16, shape, dtype=np.uint8))

    def both_ways(codes):
        packed = quantized.from_bytes(codes)
        # Turned, so that XLA reads what it was given in an order of its own.
        return packed.T, quantized.to_bytes(packed), quantized.to_bytes(packed.T)

    expected = jax.lax.bitcast_convert_type(codes.astype(jnp.uint4), jnp.float4_e2m1fn)
    found, back, turned = jax.jit(both_ways)(codes)
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected).T)
    np.testing.assert_array_equal(back, codes)
    np.testing.assert_array_equal(turned, codes.T)
    np.testing.assert_array_equal(quantized.to_bytes(expected), codes)


def test_swizzle_has_the_published_offsets():
    scale = jnp.asarray(np.random.default_rng(0).integers(0, 255, (130, 6)), jnp.uint8)
    swizzled = np.asarray(swizzle_scale(scale)).reshape(2, 2, 512)
    for i, j in ((0, 0), (1, 0), (32, 0), (77, 3), (127, 2), (129, 5)):
        tile = swizzled[i // 128, j // 4]
        assert tile[(i % 128 % 32) * 16 + (i % 128 // 32) * 4 + j % 4] == scale[i, j]
    assert not swizzled[1, 1, 2 * 4 :: 512].any()
    np.testing.assert_array_equal(unswizzle_scale(swizzle_scale(scale), (130, 6)), scale)


@pytest.mark.parametrize(
    "call, part",
    [
        (lambda x: ab.quantize(x, "mxfp9"), "format='mxfp9'"),
        (lambda x: ab.quantize(x, "mxfp8_e4m3", scale_mode="up"), "scale_mode='up'"),
        (lambda x: ab.quantize(x, "mxfp8_e4m3", scale_mode="float32"), "fp8_block"),
        (lambda x: ab.quantize(x, "nvfp4", scale_mode="floor"), "no meaning for nvfp4"),
        (lambda x: ab.quantize(x, "nvfp4", rounding="up"), "rounding='up'"),
        (lambda x: ab.quantize(x, "nvfp4", rounding="stochastic"), "needs a key"),
        (lambda x: ab.quantize(x, "nvfp4", infinity="no"), "infinity='no'"),
        (lambda x: ab.quantize(x[None], "mxfp4", axis=0), "axis=0 of x float32[1, 4, 64]"),
        (lambda x: ab.quantize(x[0], "mxfp4", axis=-2), "axis=-2"),
        (lambda x: ab.quantize(x.astype(int), "mxfp4"), "x int32[4, 64]"),
        (lambda x: ab.quantize(x, "mxfp4", rounding="stochastic", key=jnp.ones(3)), "key float32"),
        (lambda x: ab.quantize(x, "mxfp4").dequantize(jnp.int8), "dtype int8"),
        (lambda x: ab.grouped_quantize(x, jnp.ones(2), "mxfp4", axis=0), "group_sizes float32[2]"),
        (lambda x: ab.grouped_quantize(x, jnp.ones(2, int), "mxfp4", axis=2), "axis=2"),
        (lambda x: ab.quantize(x[0, 0], "mxfp4"), "axis=-1 of x float32[]"),
        (lambda x: ab.grouped_quantize(x[0], jnp.ones(2, int), "mxfp4", axis=0), "x float32[64]"),
        (
            lambda x: ab.grouped_quantize(x, jnp.ones((1, 2), int), "mxfp4", axis=0),
            "[1, 2]; must be",
        ),
        (
            lambda x: ab.grouped_quantize(
                x, jnp.ones(2, int), "mxfp4", axis=0, rounding="stochastic"
            ),
            "grouped_quantize: rounding='stochastic' needs a key",
        ),
        (lambda x: ab.Recipe("own", "mxfp8_e4m3", "fp7", "mxfp8_e4m3"), "w='fp7'"),
        (lambda x: ab.Recipe("own", *("mxfp4",) * 3, gemms=(("up", BF16),)), "gemms='up'"),
        (lambda x: swizzle_scale(x), "scale float32"),
        (lambda x: unswizzle_scale(x, (4, 4)), "must be [1, 1, 32, 16]"),
    ],
)
def test_errors_name_the_argument(call, part):
    with pytest.raises(ValueError) as error:
        call(jnp.asarray(some((4, 64))))
    assert part in str(error.value)


def test_group_sizes_that_exceed_the_rows():
    for sizes in ([3, 2], [3, -1]):
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="group_sizes"):
            ab.grouped_quantize(
                some((4, 64)), jnp.array(sizes), "mxfp4", axis=0
            ).data.block_until_ready()

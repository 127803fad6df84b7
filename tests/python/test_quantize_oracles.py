# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Quantisation against independent libraries, and where these disagree with us, as docs/low-precision.md lists it.

gfloat and torchao are not needed to use or test anything else: without them their tests are skipped.
"""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import anabranch as ab
import quantize_oracle as oracle

MX = {"mxfp8_e4m3": "float8_e4m3fn", "mxfp8_e5m2": "float8_e5m2"}


def bits(array):
    return np.asarray(array).view(np.uint8)


def some(shape, seed=0):
    rng = np.random.default_rng(seed)
    powers = rng.integers(-30, 30, (shape[0], 1)) + rng.integers(-4, 4, (1, shape[1]))
    return (rng.normal(size=shape) * 2.0**powers).astype(np.float32)


def one(value, format="mxfp8_e4m3", **options):
    """Scale and first element of a block that holds a number and, as its largest, nothing above it."""
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = value
    q = ab.quantize(x, format, **options)
    return int(bits(q.scale)[0, 0]), int(bits(q.data)[0, 0])


def test_ml_dtypes_overflows_where_we_saturate():
    assert np.float32(465).astype(ml_dtypes.float8_e4m3fn).view(np.uint8) == 0x7F
    assert one(465, scale_mode="floor") == (127, 0x7E)


def test_ml_dtypes_has_other_codes_of_nan():
    nan = np.float32(np.nan)
    assert nan.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) == 0x8
    assert one(np.nan, "mxfp4") == (0xFF, 0x7)
    assert (-nan).astype(ml_dtypes.float8_e4m3fn).view(np.uint8) == 0xFF
    assert one(-np.nan) == (0xFF, 0x7F)


def test_ml_dtypes_rounds_a_scale_to_nearest():
    ratio = np.float32(1.25)
    assert ratio.astype(ml_dtypes.float8_e8m0fnu).view(np.uint8) == 127
    assert one(448 * ratio)[0] == 128


def test_jax_wraps_the_scale_of_a_block_with_nan():
    module = pytest.importorskip("jax._src.cudnn.scaled_matmul_stablehlo")
    if not hasattr(module, "quantize"):
        pytest.skip("this jax has no such function")
    config = module.BlockScaleConfig(
        mode="mxfp8", block_size=32, data_type=jnp.float8_e4m3fn, scale_type=jnp.float8_e8m0fnu,
        global_scale=None, infer_only=False,
    )  # fmt: skip
    # On everything else it agrees.
    x = some((8, 64))
    data, scale = module.quantize(jnp.asarray(x), config)
    q = ab.quantize(x, "mxfp8_e4m3")
    np.testing.assert_array_equal(bits(scale).reshape(8, 2), bits(q.scale))
    np.testing.assert_array_equal(bits(data).reshape(8, 64), bits(q.data))
    x[0, 0] = np.nan
    _, scale = module.quantize(jnp.asarray(x), config)
    assert bits(scale).reshape(8, 2)[0, 0] != 0xFF
    assert bits(ab.quantize(x, "mxfp8_e4m3").scale)[0, 0] == 0xFF


@pytest.mark.parametrize("format", ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp4"))
def test_gfloat_rounds_to_the_same_elements(format):
    gfloat = pytest.importorskip("gfloat")
    formats = pytest.importorskip("gfloat.formats")
    name = {
        "mxfp8_e4m3": "format_info_ocp_e4m3",
        "mxfp8_e5m2": "format_info_ocp_e5m2",
        "mxfp4": "format_info_ocp_e2m1",
    }[format]
    info, largest = getattr(formats, name), oracle.ELEMENTS[format][1]
    values = np.arange(0, 65536, 7, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    values = values[np.abs(values) <= largest]
    x = np.stack([values, np.full_like(values, largest)])
    q = ab.quantize(x, format, axis=-2)
    got = np.asarray(q.data)[0].astype(np.float32)
    want = [gfloat.round_float(info, float(v), sat=True) for v in values]
    np.testing.assert_array_equal(got, np.array(want, np.float32))


@pytest.mark.parametrize("format", MX)
@pytest.mark.parametrize("mode", ("rceil", "floor", "even", "ceil"))
def test_torchao_gives_the_same_mx_tensors(format, mode):
    torch = pytest.importorskip("torch")
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    x = some((64, 96), seed=1)
    x[3, :32] = 0
    scale, data = mx.to_mx(
        torch.from_numpy(x), getattr(torch, MX[format]), 32,
        scaling_mode=getattr(mx.ScaleCalculationMode, mode.upper()),
    )  # fmt: skip
    q = ab.quantize(x, format, scale_mode=mode)
    np.testing.assert_array_equal(scale.view(torch.uint8).numpy(), bits(q.scale))
    np.testing.assert_array_equal(data.view(torch.uint8).numpy(), bits(q.data))


def torchao_block(value, mode):
    torch = pytest.importorskip("torch")
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    x = torch.zeros(1, 32)
    x[0, 0] = value
    mode = getattr(mx.ScaleCalculationMode, mode.upper())
    scale, data = mx.to_mx(x, torch.float8_e4m3fn, 32, scaling_mode=mode)
    return int(scale.view(torch.uint8)[0, 0]), int(data.view(torch.uint8)[0, 0])


def test_torchao_has_the_same_scale_of_infinity():
    assert torchao_block(float("inf"), "rceil")[0] == 0xFE
    assert one(np.inf) == (0xFE, 0x7E)


def test_torchao_loses_blocks_of_the_smallest_scale():
    value = 2.0**-127  # scale code 0, 1 times its scale
    for mode in ("rceil", "floor"):
        assert one(value, scale_mode=mode) == (0, 0x38)
    assert torchao_block(value, "rceil") == (0, 0)
    assert torchao_block(value, "floor") == (0, 0x30)  # divided by 2^-126

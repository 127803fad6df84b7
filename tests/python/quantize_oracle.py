# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Block-scaled quantisation in numpy and ml_dtypes, written from the formats' definitions alone."""

import math

import ml_dtypes
import numpy as np

ELEMENTS = {
    "mxfp8_e4m3": (ml_dtypes.float8_e4m3fn, 448.0, 8, 3),
    "mxfp8_e5m2": (ml_dtypes.float8_e5m2, 57344.0, 15, 2),
    "mxfp4": (ml_dtypes.float4_e2m1fn, 6.0, 2, 1),
    "nvfp4": (ml_dtypes.float4_e2m1fn, 6.0, 2, 1),
    "nvfp4_16x16": (ml_dtypes.float4_e2m1fn, 6.0, 2, 1),
    "fp8_block_1x128": (ml_dtypes.float8_e4m3fn, 448.0, 8, 3),
    "fp8_block_128x128": (ml_dtypes.float8_e4m3fn, 448.0, 8, 3),
}
BLOCKS = {"mxfp8_e4m3": 32, "mxfp8_e5m2": 32, "mxfp4": 32, "nvfp4": 16, "nvfp4_16x16": 16,
          "fp8_block_1x128": 128, "fp8_block_128x128": 128}  # fmt: skip

# Formats whose blocks lie along one axis and whose scale follows from the block alone.
ALONG_AN_AXIS = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "fp8_block_1x128")


def cast(values, format):
    """Codes of f32 values: saturate, then round to nearest even."""
    dtype, largest, _, _ = ELEMENTS[format]
    return np.clip(values, -largest, largest).astype(dtype).view(np.uint8)


def power(amax, format, mode):
    """E8M0 code of one block, by integer exponents."""
    _, largest, emax, mantissa_bits = ELEMENTS[format]
    if amax == 0:
        return 0
    if mode == "rceil":
        ratio = float(np.float32(amax) / np.float32(largest))
        if ratio == 0:  # below f32's range, and far below 2^-127
            return 0
        fraction, exponent = math.frexp(ratio)
        exponent = exponent - 1 + (fraction > 0.5)
    else:
        fraction, exponent = math.frexp(float(amax))  # amax = fraction * 2^exponent, >= 0.5
        if mode == "even":
            # Rounded to mantissa_bits after the leading one; 1.0 means the next power.
            steps = 2 ** (mantissa_bits + 1)
            fraction = math.floor(fraction * steps + 0.5) / steps
            exponent += fraction >= 1
        if mode == "ceil":
            exponent += fraction > 0.5
        exponent = exponent - 1 - emax
    return min(max(exponent, -127), 127) + 127


def quantize(x, format, axis, mode="rceil"):
    """Codes u8 [M, N], scales [.., ..] (bytes, or f32 for FP8 blocks), tensor scale or None."""
    x = np.asarray(x, np.float32)
    size = BLOCKS[format]
    square = format.endswith(("128x128", "16x16"))
    rows = size if square or axis == 0 else 1
    columns = size if square or axis == 1 else 1
    shape = (-(-x.shape[0] // rows), -(-x.shape[1] // columns))
    codes = np.zeros(x.shape, np.uint8)
    scales = np.zeros(shape, np.float32 if format.startswith("fp8") else np.uint8)
    encode = _nvfp4_encode(np.abs(x).max(initial=0)) if format.startswith("nvfp4") else None
    for i, j in np.ndindex(shape):
        part = np.s_[i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
        amax = np.abs(x[part]).max()
        if encode is not None:
            scale = np.float32(amax * np.float32(encode * np.float32(1 / 6)))
            code = np.minimum(scale, 448).astype(ml_dtypes.float8_e4m3fn)
            with np.errstate(divide="ignore"):
                multiplier = np.float32(1) / (np.float32(code) * (np.float32(1) / encode))
            multiplier = np.minimum(multiplier, np.finfo(np.float32).max)
            scales[i, j] = code.view(np.uint8)
        elif mode == "float32":
            with np.errstate(over="ignore"):
                multiplier = np.float32(448) / amax if amax else np.float32(1)
            multiplier = np.minimum(multiplier, np.finfo(np.float32).max)
            scales[i, j] = np.float32(1) / multiplier
        else:
            code = power(amax, format, mode)
            multiplier = np.float32(math.ldexp(1, 127 - code))
            scales[i, j] = code
            if format.startswith("fp8"):
                scales[i, j] = math.ldexp(1, code - 127) if amax else 1
                multiplier = multiplier if amax else np.float32(1)
        with np.errstate(over="ignore"):
            codes[part] = cast(x[part] * multiplier, format)
    return codes, scales, None if encode is None else np.float32(1) / encode


def _nvfp4_encode(amax):
    if amax == 0:
        return np.float32(1)
    return min(np.float32(2688) / np.float32(amax), np.finfo(np.float32).max)

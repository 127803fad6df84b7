# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""FP8 and MXFP4 weights as DeepSeek-V3 and GPT-OSS publish them: values by ml_dtypes, files bit for bit."""

import json

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import anabranch as ab
from anabranch.interop import open_tensors, write_tensors

RNG = np.random.default_rng(3)


def deepseek(rows, columns):
    """Every code but NaN, and scales of any size."""
    codes = RNG.integers(0, 256, (rows, columns), np.uint8)
    codes[(codes & 127) == 127] = 1
    shape = (-(-rows // 128), -(-columns // 128))
    scale = np.ldexp(RNG.uniform(0.5, 1, shape), RNG.integers(-30, 5, shape)).astype(np.float32)
    return codes.view(ml_dtypes.float8_e4m3fn), scale


def gpt_oss(*shape):
    *lead, columns = shape
    blocks = RNG.integers(0, 256, (*lead, columns // 32, 16), np.uint8)
    return blocks, RNG.integers(100, 150, (*lead, columns // 32), np.uint8)


def write(path, tensors):
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("shape", [(256, 128), (300, 130), (1, 1), (576, 257)])
def test_deepseek_weights_are_multiplied_by_scale_inv(tmp_path, shape):
    weight, scale = deepseek(*shape)
    write(tmp_path / "a.safetensors", {"q.weight": weight, "q.weight_scale_inv": scale})
    tensors = open_tensors(tmp_path / "a.safetensors")
    assert list(tensors) == ["q.weight"]
    each = np.repeat(np.repeat(scale, 128, 0), 128, 1)[: shape[0], : shape[1]]
    expected = weight.astype(np.float32) * each
    np.testing.assert_array_equal(tensors["q.weight"].dequantize(), expected)
    assert tensors["q.weight"].format == "fp8_block_128x128"


@pytest.mark.parametrize("shape", [(2, 6, 64), (32,), (3, 32)])
def test_gpt_oss_blocks_hold_the_first_element_in_the_low_half(tmp_path, shape):
    blocks, scales = gpt_oss(*shape)
    write(tmp_path / "a.safetensors", {"down_proj_blocks": blocks, "down_proj_scales": scales})
    found = open_tensors(tmp_path / "a.safetensors")["down_proj"]
    expected = np.empty(shape, np.float32)
    table = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    flat, out = blocks.reshape(-1, 16), expected.reshape(-1, 32)
    out[:, 0::2], out[:, 1::2] = table[flat & 15], table[flat >> 4]
    out *= np.ldexp(np.float32(1), scales.reshape(-1, 1).astype(int) - 127)
    np.testing.assert_array_equal(found.dequantize(), expected)
    assert found.format == "mxfp4" and found.data.shape == shape


def test_files_come_back_bit_for_bit(tmp_path):
    weight, scale = deepseek(200, 300)
    blocks, scales = gpt_oss(2, 4, 96)
    every_byte = np.arange(256, dtype=np.uint8)
    published = {
        "a.weight": weight, "a.weight_scale_inv": scale,
        "e.gate_up_proj_blocks": blocks, "e.gate_up_proj_scales": scales,
        "all.weight": np.resize(every_byte, (128, 2)).view(ml_dtypes.float8_e4m3fn),
        "all.weight_scale_inv": np.array([[np.nan]], np.float32),
        "some_blocks": np.resize(every_byte, (8, 2, 16)),
        "some_scales": np.resize(every_byte, (8, 2)),  # 0 and 255 as well
        "norm": np.array([1, np.inf, -0.0], ml_dtypes.bfloat16), "step": np.array(7, np.int64),
        "exponents": every_byte.view(ml_dtypes.float8_e8m0fnu), "none": np.zeros((0, 3), np.float32),
        "alone_blocks": every_byte, "lonely.weight": every_byte.view(ml_dtypes.float8_e4m3fn),
    }  # fmt: skip
    first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
    write(first, published)
    write_tensors(second, open_tensors(first))
    assert first.read_bytes() == second.read_bytes()


def test_what_quantize_makes_can_be_published(tmp_path):
    x = RNG.normal(size=(160, 192)).astype(np.float32)
    given = {name: ab.quantize(x, name) for name in ("fp8_block_128x128", "mxfp4")}
    write_tensors(tmp_path / "a.safetensors", given)
    found = open_tensors(tmp_path / "a.safetensors")
    for name, tensor in given.items():
        np.testing.assert_array_equal(found[name].dequantize(), tensor.dequantize())
    # Nothing else has a published layout.
    for tensor in (
        ab.quantize(x, "nvfp4"),
        ab.quantize(x, "mxfp4", axis=-2),
        ab.quantize(x[:, :40], "mxfp4"),
    ):
        with pytest.raises(ValueError, match="write_tensors: w is .* must be fp8_block_128x128"):
            write_tensors(tmp_path / "b.safetensors", {"w": tensor})
    with pytest.raises(ValueError, match="two tensors would be called w_scale_inv"):
        write_tensors(
            tmp_path / "b.safetensors", {"w_scale_inv": x, "w": given["fp8_block_128x128"]}
        )


def test_a_scale_may_lie_in_another_file(tmp_path):
    weight, scale = deepseek(128, 128)
    write(tmp_path / "1.safetensors", {"w": weight})
    write(tmp_path / "2.safetensors", {"w_scale_inv": scale, "old": scale})
    assert list(open_tensors(tmp_path)) == ["old", "w"]
    index = {"weight_map": {"w": "1.safetensors", "w_scale_inv": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    tensors = open_tensors(tmp_path)
    assert list(tensors) == ["w"]
    np.testing.assert_array_equal(tensors["w"].scale, scale)
    index["weight_map"]["gone"] = "1.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="tensor gone is not in 1.safetensors"):
        open_tensors(tmp_path)


def test_scales_must_fit(tmp_path):
    path = tmp_path / "a.safetensors"
    weight, scale = deepseek(256, 128)
    write(path, {"w": weight, "w_scale_inv": scale.T.copy()})
    with pytest.raises(
        ValueError, match=r"w_scale_inv is float32\[1, 2\]; must be .* w \[256, 128\]"
    ):
        open_tensors(path)["w"]
    blocks, scales = gpt_oss(2, 64)
    write(path, {"w_blocks": blocks[..., :8].copy(), "w_scales": scales})
    with pytest.raises(ValueError, match=r"w_blocks uint8\[2, 2, 8\] and w_scales uint8\[2, 2\]"):
        open_tensors(path)["w"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:6], "6 bytes are no safetensors file"),
        (lambda raw: raw[:40], "no safetensors file with a header of"),
        (lambda raw: raw.replace(b"[4,2]", b"[4,3]"), "tensor w F32.*needs 48 bytes"),
        (lambda raw: raw.replace(b'"F32"', b'"F4X"'), "type must be one of F64, F32"),
        (lambda raw: raw.replace(b'"w"', b"'w'"), "damaged header"),
        (lambda raw: raw[:-4], "tensor w F32"),
    ],
)
def test_damaged_files_are_named(tmp_path, damage, message):
    path = tmp_path / "a.safetensors"
    write(path, {"w": np.zeros((4, 2), np.float32)})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=message):
        open_tensors(path)
    with pytest.raises(FileNotFoundError):
        open_tensors(tmp_path / "absent.safetensors")

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
import json
import shutil

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from anabranch.train import checkpoint

SCALARS = {"step": 7, "cursor": {"sequence": 56}}


def tree(value=0.0):
    return {
        "layers": [{"w": jnp.arange(6.0).reshape(2, 3) + value}, {"w": jnp.ones((3, 2))}],
        "count": jnp.int32(7),
    }


def save(folder, step, keep=3, value=0.0):
    return checkpoint.save(folder, step, {"params": tree(value)}, SCALARS | {"step": step}, keep)


def newest(folder):
    warnings = []
    return checkpoint.newest_good(folder, warnings.append), warnings


def test_round_trip_keeps_every_bit(tmp_path):
    save(tmp_path, 7)
    found, warnings = newest(tmp_path)
    assert (found.step, found.scalars, warnings) == (7, SCALARS, [])
    template = jax.eval_shape(tree)
    restored = checkpoint.restore(template, found.tensors("params"))
    assert jax.tree.structure(restored) == jax.tree.structure(template)
    for old, new in zip(jax.tree.leaves(tree()), jax.tree.leaves(restored), strict=True):
        assert old.dtype == new.dtype and old.shape == new.shape
        np.testing.assert_array_equal(old, new)


def test_files_are_as_readable_as_others(tmp_path):
    modes = {file.stat().st_mode & 0o777 for file in save(tmp_path, 1).iterdir()}
    assert len(modes) == 1


def test_equal_state_gives_equal_files(tmp_path):
    first, second = save(tmp_path / "a", 3), save(tmp_path / "b", 3)
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes()


def test_d4_array_order_is_stored_not_memory_order(tmp_path):
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = {
        "fortran": np.asfortranarray(wide),
        "strided": wide[:, ::2],
        "transposed": wide.T,
        "reversed": wide[::-1],
        "big_endian": wide.astype(">f4"),
        "big_endian_strided": wide.astype(">f4")[:, 1::2],
        "broadcast": np.broadcast_to(np.float32(3), (2, 5)),
        "bfloat16": np.asfortranarray(wide.astype(ml_dtypes.bfloat16)),
        "integers": np.arange(6, dtype=np.int32).reshape(2, 3).T,
        "scalar": np.array(2.5, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }
    path = checkpoint.save(tmp_path, 1, {"params": arrays}, {}, 1)
    with safetensors.safe_open(path / "params.safetensors", framework="np") as file:
        assert set(file.keys()) == set(arrays)
        for name, array in arrays.items():
            stored = file.get_tensor(name)
            assert stored.shape == array.shape, name
            assert stored.dtype == array.dtype.newbyteorder("="), name
            np.testing.assert_array_equal(stored, array, err_msg=name)
    del arrays["bfloat16"]  # safetensors.numpy itself has no bf16
    path = checkpoint.save(tmp_path, 2, {"params": arrays}, {}, 1)
    for name, stored in safetensors.numpy.load_file(path / "params.safetensors").items():
        np.testing.assert_array_equal(stored, arrays[name], err_msg=name)


def test_d4_header_of_a_large_model_stays_small():
    # DeepSeek-V3 has 58 MoE layers of 256 experts and 3 matrices; a layer's experts are one tensor per kind here.
    leaves = [{"moe": {w: np.zeros(0) for w in ("w_gate", "w_up", "w_down")}} for _ in range(58)]
    names = checkpoint.flatten({"layers": leaves})
    assert len(names) == 58 * 3
    header = json.dumps({name: {"dtype": "F32", "shape": [256, 7168, 2048]} for name in names})
    assert len(header) < 100e6 / 1000


@pytest.mark.parametrize("fault", ["truncate", "flip", "missing", "no manifest", "half manifest"])
def test_damaged_checkpoint_is_skipped_with_one_warning(tmp_path, fault):
    save(tmp_path, 5)
    bad = save(tmp_path, 10)
    weights, manifest = bad / "params.safetensors", bad / checkpoint.MANIFEST
    data = weights.read_bytes()
    if fault == "truncate":
        weights.write_bytes(data[:-1])
    elif fault == "flip":
        weights.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    elif fault == "missing":
        weights.unlink()
    elif fault == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text(manifest.read_text()[:40])
    found, warnings = newest(tmp_path)
    assert found.step == 5
    assert len(warnings) == 1 and "step-10" in warnings[0] and "\n" not in warnings[0]


def test_nothing_good_is_none(tmp_path):
    assert newest(tmp_path / "absent") == (None, [])
    save(tmp_path, 1)
    (tmp_path / "step-1" / checkpoint.MANIFEST).unlink()
    found, warnings = newest(tmp_path)
    assert found is None and len(warnings) == 1


def test_leftovers_of_a_killed_save_are_invisible_and_removed_by_the_next(tmp_path):
    good = save(tmp_path, 5)
    half = tmp_path / ".step-10.writing"
    shutil.copytree(good, half)
    (half / "params.safetensors").write_bytes(b"\0" * 100)
    found, warnings = newest(tmp_path)
    assert found.step == 5 and warnings == []
    save(tmp_path, 10)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-10", "step-5"]


def test_keeps_the_newest_and_drops_an_abandoned_future(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=2)
    assert checkpoint.steps(tmp_path) == [4, 3]
    # The run was resumed from 3 because 4 was damaged: what it saves next replaces the future of before.
    save(tmp_path, 9, keep=3)
    save(tmp_path, 5, keep=3)
    assert checkpoint.steps(tmp_path) == [5, 4, 3]


def test_saving_a_step_again_replaces_it(tmp_path):
    save(tmp_path, 4)
    save(tmp_path, 4, value=1.0)
    found, _ = newest(tmp_path)
    np.testing.assert_array_equal(found.tensors("params")["layers.0.w"][0], [1, 2, 3])
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-4"]


def test_d10_non_finite_state_is_never_written(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(checkpoint.CheckpointError, match=r"layers\.0\.w .*non-finite"):
        save(tmp_path, 2, value=jnp.nan)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]


def test_restore_names_what_does_not_fit(tmp_path):
    save(tmp_path, 1)
    tensors = newest(tmp_path)[0].tensors("params")
    template = jax.eval_shape(tree)
    wrong = {**template, "layers": [{"w": jax.ShapeDtypeStruct((2, 4), jnp.float32)}] * 2}
    with pytest.raises(
        checkpoint.CheckpointError, match=r"layers\.0\.w is float32\[2, 3\].*\[2, 4\]"
    ):
        checkpoint.restore(wrong, tensors)
    with pytest.raises(checkpoint.CheckpointError, match="extra is missing"):
        checkpoint.restore({**template, "extra": template["count"]}, tensors)
    with pytest.raises(checkpoint.CheckpointError, match="count has no place"):
        checkpoint.restore({"layers": template["layers"]}, tensors)


def test_failed_write_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.safetensors.numpy, "save_file", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, 2)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-1"]
    assert newest(tmp_path)[0].step == 1

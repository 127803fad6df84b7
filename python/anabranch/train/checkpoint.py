# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Checkpoints: one folder `step-N` each, either complete or never seen.

A checkpoint is safetensors files, one per pytree, and `manifest.json` with the SHA-256 and size of each
file and the scalars that a resumed run needs. It is written to a hidden temporary folder, files and folder are
flushed to disk, and one rename makes it visible. A reader believes only folders whose every byte matches the manifest.
"""

import dataclasses
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

FORMAT = 1
MANIFEST = "manifest.json"
_STEP_FOLDER = re.compile(r"^step-(\d+)$")


class CheckpointError(Exception):
    """A checkpoint folder that is incomplete, damaged, or of another model."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its folder, its step, and the scalars stored with it."""

    path: Path
    step: int
    scalars: dict[str, Any]

    def tensors(self, tree: str) -> dict[str, np.ndarray]:
        """Arrays of the pytree saved as `tree`, by leaf name, in native byte order."""
        with safetensors.safe_open(self.path / f"{tree}.safetensors", framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def leaf_name(path: tuple[Any, ...]) -> str:
    """Dotted name of a pytree leaf, e.g. `layers.moe.w_gate`, from a `jax.tree_util` key path."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def storable(array: Any) -> np.ndarray:
    """A C-contiguous little-endian copy or view of `array`, same shape (0-d stays 0-d), dtype and values.

    safetensors writes the bytes of the buffer as they lie, so a Fortran-ordered or strided array would be
    stored permuted (safetensors#825).
    """
    array = np.asarray(array)
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return array if array.flags.c_contiguous else np.array(array, order="C")


def flatten(tree: Any) -> dict[str, np.ndarray]:
    """Leaves of a pytree by dotted name, each ready to be written."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {leaf_name(path): storable(leaf) for path, leaf in leaves}


def restore(template: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    """A pytree shaped like `template` (arrays or ShapeDtypeStructs) with fresh device arrays from `tensors`.

    Raises CheckpointError that names the first missing, unexpected or mismatching tensor.
    """

    def leaf(path: tuple[Any, ...], wanted: Any) -> jax.Array:
        name = leaf_name(path)
        if name not in tensors:
            raise CheckpointError(f"tensor {name} is missing")
        found = tensors[name]
        if found.shape != tuple(wanted.shape) or found.dtype != wanted.dtype:
            raise CheckpointError(
                f"tensor {name} is {found.dtype}{list(found.shape)}, "
                f"the model needs {wanted.dtype}{list(wanted.shape)}"
            )
        # A private copy: donation must never reach memory that numpy or the file still owns.
        return jax.numpy.array(found, copy=True)

    result = jax.tree_util.tree_map_with_path(leaf, template)
    names = {leaf_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(template)[0]}
    extra = sorted(set(tensors) - names)
    if extra:
        raise CheckpointError(f"tensor {extra[0]} has no place in the model")
    return result


def save(
    folder: Path, step: int, trees: Mapping[str, Any], scalars: Mapping[str, Any], keep: int
) -> Path:
    """Writes `folder/step-<step>`, then deletes later steps and all but the `keep` newest.

    A later step is the damaged or abandoned future of a run that was resumed from an earlier one.
    `trees` maps a file stem to a pytree of arrays; `scalars` is JSON-able. On any failure nothing visible
    has changed. Refuses a tree with a non-finite value (CheckpointError): such a state is never worth resuming.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    target = folder / f"step-{step}"
    temporary = folder / f".step-{step}.writing"
    try:
        temporary.mkdir()
        files = {}
        for stem, tree in trees.items():
            tensors = flatten(tree)
            _require_finite(tensors)
            name = f"{stem}.safetensors"
            safetensors.numpy.save_file(tensors, temporary / name, metadata={"format": "anabranch"})
            _grant_usual_permissions(temporary / name)
            files[name] = _flush_and_digest(temporary / name)
        manifest = {"format": FORMAT, "step": step, "files": files, "scalars": dict(scalars)}
        with open(temporary / MANIFEST, "w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        _flush_folder(temporary)
        if target.exists():
            target.rename(folder / f".step-{step}.replaced")
        temporary.rename(target)
        _flush_folder(folder)
    except safetensors.SafetensorError as error:
        raise OSError(f"cannot write {target}: {error}") from error
    finally:
        remove_leftovers(folder)
    _prune(folder, step, keep)
    return target


def steps(folder: Path) -> list[int]:
    """Steps of all visible checkpoints in `folder`, newest first, good or not."""
    if not folder.is_dir():
        return []
    found = (_STEP_FOLDER.match(entry.name) for entry in folder.iterdir())
    return sorted((int(match.group(1)) for match in found if match), reverse=True)


def newest_good(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest checkpoint that verifies; each newer one that doesn't gets one `warn` line."""
    for step in steps(folder):
        try:
            return verify(folder / f"step-{step}")
        except CheckpointError as error:
            warn(f"checkpoint {folder / f'step-{step}'} skipped: {error}")
    return None


def verify(path: Path) -> Checkpoint:
    """Reads a checkpoint's manifest and checks every file against it; CheckpointError says what is wrong."""
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        files, step, scalars = manifest["files"], int(manifest["step"]), manifest["scalars"]
        version = manifest["format"]
    except OSError as error:
        raise CheckpointError(f"{MANIFEST}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{MANIFEST} is damaged") from error
    if version != FORMAT:
        raise CheckpointError(f"format {version}, this version reads {FORMAT}")
    for name, recorded in files.items():
        try:
            size = (path / name).stat().st_size
            if size != recorded["bytes"]:
                raise CheckpointError(f"{name} has {size} bytes, not {recorded['bytes']}")
            if _digest(path / name) != recorded["sha256"]:
                raise CheckpointError(f"{name} fails its checksum")
        except OSError as error:
            raise CheckpointError(f"{name}: {error.strerror}") from error
    return Checkpoint(path, step, scalars)


def remove_leftovers(folder: Path) -> None:
    """Deletes what an interrupted save or prune left; only the run that writes `folder` may call it."""
    if folder.is_dir():
        for entry in folder.glob(".step-*"):
            shutil.rmtree(entry, ignore_errors=True)


def _prune(folder: Path, newest: int, keep: int) -> None:
    found = steps(folder)
    valid = [step for step in found if step <= newest][: max(keep, 1)]
    for step in set(found) - set(valid):
        # Renamed first, so that a kill in the middle of deletion leaves no half folder under a step's name.
        doomed = folder / f".step-{step}.pruned"
        (folder / f"step-{step}").rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def _require_finite(tensors: Mapping[str, np.ndarray]) -> None:
    for name, array in tensors.items():
        if array.dtype.kind not in "biu" and not np.isfinite(array).all():
            raise CheckpointError(f"tensor {name} holds a non-finite value; nothing was written")


def _grant_usual_permissions(path: Path) -> None:
    """Safetensors makes files that only their owner may read; others get what the umask leaves them."""
    mask = os.umask(0o077)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def _flush_and_digest(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return {"sha256": _digest(path), "bytes": path.stat().st_size}


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

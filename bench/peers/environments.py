# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The peers' virtual environments, made outside the repository with plain pip."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

# MaxText's own requirements pin several hundred packages, accelerators' among them: its wheel goes in without
# them, then what its pre-training imports. What is measured has its version pinned: XLA decides MaxText's speed.
REQUIREMENTS = {
    "maxtext": (
        ("--no-deps", "maxtext==0.2.5"),
        tuple(
            "jax==0.12.0.1 jaxlib==0.12.0.1 flax==0.12.12 optax==0.2.8 orbax-checkpoint grain aqtp qwix tokamax "
            "drjax pathwaysutils transformers tokenizers huggingface_hub sentencepiece tiktoken omegaconf "
            "ml-collections pydantic pyyaml jinja2 absl-py etils jaxtyping packaging psutil pillow sympy numpy "
            "setuptools tensorboardX".split()
        ),
    ),
    "torch": (("torch==2.15.*", "transformers==5.23.*", "numpy"),),
}
_PYTHONS = ("python3.12", "python3.13")  # MaxText needs 3.12 at least


class MissingEnvironment(Exception):
    """An environment is missing or could not be made."""


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/anabranch/peers`."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "anabranch" / "peers"


def python_of(folder: Path, name: str) -> Path:
    """The interpreter of an environment that was made before.

    Raises:
      MissingEnvironment: it was not, or with other requirements.
    """
    if not (folder / name / _stamp(name)).exists():
        raise MissingEnvironment(f"no environment {name!r} in {folder}: run `run.py install` first")
    return folder / name / "bin" / "python"


def install(folder: Path, name: str, python: str | None) -> None:
    """Makes the environment unless it is there already. Several gigabytes, some minutes."""
    target = folder / name
    if (target / _stamp(name)).exists():
        return
    interpreter = python or find_interpreter()
    print(f"peers: making the environment {name} in {folder}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    # Run from elsewhere: the peers' modules beside this script must not hide a package's.
    commands = [[interpreter, "-m", "venv", "--clear", str(target)]]
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    commands += [[*pip, "--no-cache-dir", *line] for line in REQUIREMENTS[name]]
    for command in commands:
        if subprocess.run(command, cwd=folder, check=False).returncode:
            raise MissingEnvironment(f"failed: {' '.join(command)}")
    (target / _stamp(name)).touch()


def _stamp(name: str) -> str:
    return f".peers-{hashlib.sha256(repr(REQUIREMENTS[name]).encode()).hexdigest()[:12]}"


def find_interpreter() -> str:
    """A Python that makes the environments: on the path, or kept by pyenv but not on the path.

    Raises:
      MissingEnvironment: there is none.
    """
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for name in _PYTHONS:
        version = name.removeprefix("python")
        others = sorted(kept.glob(f"{version}.*/bin/{name}"), key=_patch_number, reverse=True)
        for candidate in (name, *map(str, others)):
            if found := _working(candidate):
                return found
    raise MissingEnvironment(
        f"none of {', '.join(_PYTHONS)} works, nor does one in {kept}: name one with --python"
    )


def _patch_number(path: Path) -> int:
    """3.12.10 after 3.12.9; -1 for a development version."""
    last = path.parts[-3].rsplit(".", 1)[-1]
    return int(last) if last.isdigit() else -1


def _working(python: str) -> str | None:
    """The program's path if it runs: a version manager's stand-in exists and does not."""
    path = shutil.which(python)
    if (
        path is None
        or subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode
    ):
        return None
    real = [path, "-c", "import sys; print(sys.executable)"]
    return subprocess.run(real, capture_output=True, check=True, text=True).stdout.strip()

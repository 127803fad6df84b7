# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Training: the loop, its optimizer, checkpoints, metrics and reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anabranch.recipes import Recipe

__all__ = ["run"]


def run(
    recipe: Recipe, out_dir: str | Path, steps: int | None = None, resume: bool = False
) -> dict[str, Any]:
    """Trains `recipe` in the folder `out_dir`; see `anabranch.train.trainer.run`."""
    from anabranch.train import trainer

    return trainer.run(recipe, Path(out_dir), steps, resume)

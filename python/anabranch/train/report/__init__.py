# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The HTML report of a training run: one file, without network, that anybody can open."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from anabranch.train.report.page import render
from anabranch.train.report.run_log import load

__all__ = ["write"]


def write(run_dir: Path) -> Path:
    """Writes `report.html` into a run folder and returns its path.

    Reads `config.json` and `metrics.jsonl`. Works for finished, running, killed and resumed runs,
    and for runs without any step; the file is replaced as a whole.

    Raises:
        OSError: the folder does not exist or cannot be written to.
    """
    run_dir = Path(run_dir)
    target = run_dir / "report.html"
    temporary = run_dir / ".report.html.tmp"
    with np.errstate(all="ignore"):  # a run may have logged numbers of any size
        page = render(load(run_dir))
    temporary.write_text(page, "utf-8", errors="replace", newline="\n")
    os.replace(temporary, target)
    return target

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Benchmarks whose yardsticks are measured in the same process: ``anabranch bench SUITE``."""

from __future__ import annotations

from anabranch.bench.suite import SUITES, run

__all__ = ["SUITES", "run"]

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Tensors as others publish them: safetensors files, FP8 and MXFP4 weights included."""

from __future__ import annotations

from anabranch.interop.tensors import Tensors, open_tensors, write_tensors

__all__ = ["Tensors", "open_tensors", "write_tensors"]

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Gives the test process four CPU devices, so that ``shard_map`` has something to map over."""

from __future__ import annotations

import jax

jax.config.update("jax_num_cpu_devices", 4)

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The planner: what a training step takes, in seconds and bytes, on accelerators that are not here."""

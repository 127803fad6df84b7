# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The commands of `anabranch`, one module each; see `anabranch.cli`."""

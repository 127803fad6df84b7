# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""The operations, one module each; ``anabranch`` re-exports the public ones."""

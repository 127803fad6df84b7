# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""`python -m anabranch`: the command `anabranch` of this very interpreter."""

import sys

from anabranch.cli import main

sys.exit(main())

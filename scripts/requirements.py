# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Prints, one a line, what pip installs before the engine is compiled in place.

Read from pyproject.toml: the build backend, the dependencies, and the extras named as arguments.
"""

import pathlib
import sys
import tomllib

root = pathlib.Path(__file__).resolve().parent.parent
table = tomllib.loads((root / "pyproject.toml").read_text())
requirements = [r for r in table["build-system"]["requires"] if not r.startswith("jax")]
requirements += table["project"]["dependencies"]
for extra in sys.argv[1:]:
    requirements += table["project"]["optional-dependencies"][extra]
print("\n".join(requirements))

# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""JAX's coordination service in a process of its own, which lives on for a while when rank 0 has ended.

JAX keeps the service in rank 0 and aborts every other rank within milliseconds of losing it, without a name.
From a process of its own the service leaves the other ranks the time to say which rank ended, and where.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator

# What the other ranks have, once rank 0 is gone, to find out and say so.
_PATIENCE_SECONDS = 20
_READY, _END = "ready", "end"


@contextlib.contextmanager
def outliving_service() -> Iterator[None]:
    """The service that JAX starts meanwhile is a process of its own.

    ``jax.distributed.initialize`` has no argument for it; where a JAX keeps its services elsewhere, the service
    stays in rank 0.
    """
    from jax._src import distributed

    library = getattr(distributed, "_jax", None)
    start = getattr(library, "get_distributed_runtime_service", None)
    if start is None:
        yield
        return
    library.get_distributed_runtime_service = Service
    try:
        yield
    finally:
        library.get_distributed_runtime_service = start


class Service:
    """Stands in for JAX's object of that purpose, with the same arguments.

    Raises:
      RuntimeError: the service did not start.
    """

    def __init__(self, address: str, processes: int, **options: object) -> None:
        # Nothing of the launcher's is inherited: it would wait for the service, or end it with rank 0.
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps([address, processes, options])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().strip()
        if answer != _READY:
            raise RuntimeError(f"JAX's coordination service did not start at {address}: {answer}")

    def shutdown(self) -> None:
        """Ends the service; returns when it has ended."""
        self._process.communicate(_END)


def _serve(address: str, processes: int, options: dict[str, object]) -> None:
    from jaxlib import _jax

    try:
        service = _jax.get_distributed_runtime_service(address, processes, **options)
    except Exception as error:
        print(str(error).replace("\n", " "), flush=True)
        return
    print(_READY, flush=True)
    if sys.stdin.read() != _END:
        time.sleep(_PATIENCE_SECONDS)
    service.shutdown()


if __name__ == "__main__":
    _serve(*json.loads(sys.argv[1]))

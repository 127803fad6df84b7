# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""Reads batches ahead of the training step in a thread, without losing track of the cursor."""

import queue
import threading
from typing import Any, Protocol

import numpy as np


class Reader(Protocol):
    """What `anabranch.data.BatchReader` offers: the next batch, and a JSON-able place to go on from."""

    cursor: Any

    def next(self) -> dict[str, np.ndarray]:
        """The next batch, i32 arrays [B, S]."""
        ...


class Prefetcher:
    """Hands out `(batch, cursor)`, `cursor` being the place right after `batch`, whatever was read ahead.

    An exception in the reader is raised by `next`. `close` ends the thread; it never outlives the process.
    """

    def __init__(self, reader: Reader, depth: int = 2) -> None:
        """Starts to read at most `depth` batches ahead."""
        self._reader = reader
        self._queue: queue.Queue[Any] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="data", daemon=True)
        self._thread.start()

    def next(self) -> tuple[dict[str, np.ndarray], Any]:
        """The next batch and the cursor after it; waits if the reader is behind."""
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Ends the thread."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                batch = self._reader.next()
                item: Any = (batch, self._reader.cursor)
            except BaseException as error:  # noqa: BLE001 - raised again in the training thread
                item = error
            self._put(item)
            if isinstance(item, BaseException):
                return

    def _put(self, item: Any) -> None:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue

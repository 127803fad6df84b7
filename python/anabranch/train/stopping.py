# Copyright 2026 The Anabranch Authors. SPDX-License-Identifier: Apache-2.0
"""A polite end: the first Ctrl-C or SIGTERM lets the current step finish, the second acts at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether a stop was asked for; handlers are restored on exit.

    Outside the main thread, where Python allows no handlers, it never is.
    """
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        for each, old in previous.items():
            signal.signal(each, old)

    previous = {}
    if threading.current_thread() is threading.main_thread():
        previous = {each: signal.signal(each, handle) for each in _SIGNALS}
    try:
        yield lambda: asked
    finally:
        for each, old in previous.items():
            signal.signal(each, old)

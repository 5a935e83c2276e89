"""Wait for what another process or thread brings about."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Return once ``condition`` holds.

    Raises:
        AssertionError: it did not, within ``timeout_s`` seconds.
    """
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.005)

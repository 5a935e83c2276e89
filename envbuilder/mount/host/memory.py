"""What the C library does with memory that a process gave back: malloc(3), mallopt(3) of glibc."""

from __future__ import annotations

import contextlib
import ctypes

#: mallopt(3): free memory at the end of the heap that goes back to the kernel; a size from which a block is a mapping.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: Bytes that each thread's heap may keep, and those of the largest block that comes from it: a chunk as stored, and as
#: unpacked, of a megabyte each, which several threads take and give a thousand times in a start.
_KEPT, _LARGEST = 8 << 20, 4 << 20


def keep_freed() -> None:
    """Keep some freed memory for the next block: else the kernel clears each page of each chunk anew.

    ``import torch`` from ``ai`` without a trace: 0.4 of 6.9 CPU seconds. Where there is no glibc, nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST)

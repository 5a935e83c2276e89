"""Loop devices: how kernels before 6.12 get EROFS to read from files (lazy_start.md 5.6)."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from envbuilder.errors import HostError
from envbuilder.mount.host import kernel

# linux/loop.h; LOOP_CONFIGURE is in Linux from 5.8 on.
_CTL_GET_FREE, _CONFIGURE, _CLR_FD = 0x4C82, 0x4C0A, 0x4C01
_FLAG_READ_ONLY, _FLAG_AUTOCLEAR = 1, 4
#: struct loop_config: fd, block_size, struct loop_info64 (232 bytes, lo_flags at 52), reserved[8].
_CONFIG_SIZE, _INFO_OFFSET, _FLAGS_OFFSET = 304, 8, 8 + 52
#: Another process may take the free device between the two calls: try again this often.
_TRIES = 50


class NoLoopDevice(HostError):
    """No loop device could be had."""

    hint = "Load the loop module (modprobe loop) or free a loop device (losetup -D)."


def mount(metadata: Path, devices: Sequence[Path], target: Path) -> None:
    """As ``kernel.mount_erofs``, from loop devices over the same files.

    Raises:
        NoLoopDevice, MountRefused.
    """
    opened = []
    try:
        for file in [metadata, *devices]:
            opened.append(attach(file))
        kernel.mount_erofs(opened[0][0], [device for device, _ in opened[1:]], target)
    finally:
        for _, descriptor in opened:
            os.close(descriptor)  # the mount holds them now; without it they free themselves


def attach(file: Path) -> tuple[Path, int]:
    """A read-only loop device over ``file`` and its open descriptor.

    It frees itself when its last user closes it: mount it, then close the descriptor.

    Raises:
        NoLoopDevice: none is free, or the kernel refused.
    """
    backing = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _attach(backing, file)
    except OSError as error:
        raise NoLoopDevice(f"loop device for {file}: {error}") from error
    finally:
        os.close(backing)


def _attach(backing: int, file: Path) -> tuple[Path, int]:
    config = bytearray(_CONFIG_SIZE)
    struct.pack_into("<II", config, 0, backing, 0)
    struct.pack_into("<I", config, _FLAGS_OFFSET, _FLAG_READ_ONLY | _FLAG_AUTOCLEAR)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            device = Path(f"/dev/loop{fcntl.ioctl(control, _CTL_GET_FREE)}")
            opened = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(opened, _CONFIGURE, bytes(config))
            except OSError as error:
                os.close(opened)
                if error.errno != errno.EBUSY:
                    raise
            else:
                return device, opened
    finally:
        os.close(control)
    raise NoLoopDevice(f"loop device for {file}: {_TRIES} were taken before we had them")

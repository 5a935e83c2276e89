"""A node of its own for a test: an image behind switches, folders for state and cache, and what is left in them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from envbuilder.image.inspect import OpenImage, open_image
from envbuilder.layer.pages import GROUP_SIZE
from envbuilder.layer.tree import directory, file, symlink
from envbuilder.mount.settings import MountSettings
from envbuilder.mount.state import MountFolder
from envbuilder.oci.platform import Platform
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.layers import BuiltLayer, layer_of, push_image
from envbuilder.testing.programs import small_system
from envbuilder.testing.sources import SwitchedSource

#: Bytes of the big files of the test image: many chunks, and incompressible.
BIG = Random(1).randbytes(5 << 20)  # noqa: S311 - the same bytes each time
_PROGRAMS = ("sh", "cat", "sleep", "id", "cksum", "env", "ls", "tty", "mkdir", "kill")
_TAG = "test"


@cache
def image_layers() -> tuple[BuiltLayer, BuiltLayer]:
    """The layers of the test image: programs of this host, and ``data/``. The first is cut as layers of old are."""
    return (
        layer_of(
            [*small_system(_PROGRAMS), directory("data"), file("data/big", BIG), symlink("data/link", "big")],
            name="one",
            chunk_size=GROUP_SIZE,
        ),
        layer_of([file("data/second", BIG[::-1]), file("data/small", b"small\n")], name="two"),
    )


def push_test_image(layout: Path) -> None:
    """Make an image layout at ``layout`` with an image of ``image_layers``."""
    push_image(LayoutTarget(layout, create=True), image_layers(), tag=_TAG, env={"FROM_IMAGE": "yes"})


@dataclass(frozen=True, slots=True)
class Node:
    """An image, the source it comes from, and the settings of a node below ``folder``."""

    image: OpenImage
    source: SwitchedSource
    settings: MountSettings
    folder: Path

    def leftovers(self) -> list[str]:
        """Mounts, processes and folders that are still there."""
        found = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(self.folder) in line]
        for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - names only
            try:
                mounts = Path(f"/proc/{pid}/mountinfo").read_text()
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                ours = self.mark in Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if ours or str(self.settings.state_dir) in mounts or self._is_of_this_node(int(pid), words):
                found.append(f"process {pid}: {words}")
        for part in (self.settings.state_dir / "mounts", self.settings.cache_dir / "scratch"):
            found += [str(path) for path in part.glob("*")]
        return found

    @property
    def mark(self) -> bytes:
        """What a test puts into the environment of processes that it starts, so that theirs are found too."""
        return f"ENVBUILDER_TEST_NODE={self.folder}".encode()

    def _is_of_this_node(self, pid: int, words: str) -> bool:
        try:
            log = str(Path(f"/proc/{pid}/fd/2").readlink())
        except OSError:
            return False
        return "mount.keeper" in words and str(self.settings.state_dir) in log


def make_node(layout: Path, folder: Path) -> Node:
    """A node below ``folder`` for the image of ``push_test_image``."""
    source = SwitchedSource(layout, folder / "switches")
    image = open_image(source, source.lookup(_TAG), Platform("x86_64"))
    settings = MountSettings(state_dir=folder / "state", cache_dir=folder / "cache", wait_limit_s=20.0)
    return Node(image, source, settings, folder)


def process_of(folder: MountFolder, who: str) -> int:
    """The id of the ``keeper``, ``supervisor`` or ``worker`` of a mount; 0 when there is none."""
    if who == "worker":
        return folder.worker_process()[0]
    record = folder.read()
    return int(getattr(record, who)) if record else 0


def kill_at_once(pids: Iterable[int]) -> None:
    """SIGKILL them all before one of them can do anything about it."""
    found = [pid for pid in pids if pid > 1]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in found:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(pid, number)

"""A containerd of its own for tests, with its snapshots where a test says, and stargz-snapshotter if wanted."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuilder import proc
from envbuilder.mount.host import kernel
from envbuilder.testing.servers import ServerNotStarted

_START_TIMEOUT_S, _TIMEOUT_S = 30.0, 120.0
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_CONFIG = """version = 2
root = "{root}/root"
state = "{sockets}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{sockets}/c"
[ttrpc]
address = "{sockets}/t"
"""
_STARGZ = """[proxy_plugins.stargz]
type = "snapshot"
address = "{sockets}/s"
"""


@dataclass(frozen=True, slots=True)
class Containerd:
    """A running containerd. log: of its snapshotter, or of itself."""

    address: Path
    log: Path

    def __call__(self, *words: str, program: str = "ctr") -> proc.Completed:
        """``ctr WORDS``, or another program with its options."""
        return proc.run([program, "--address", self.address, *words], env={"PATH": _PATH}, timeout_s=_TIMEOUT_S)


@contextlib.contextmanager
def containerd(directory: Path, *, stargz: str = "") -> Iterator[Containerd]:
    """Start containerd with its files below ``directory``; stop it and unmount all that it mounted at the end.

    stargz: the program of tools/stargz-snapshotter; its snapshotter is then called "stargz".

    Raises:
        ServerNotStarted: it says why it does not run.
    """
    # A socket's path has at most 107 characters (unix(7)).
    sockets = Path(tempfile.mkdtemp(prefix="ctd-"))
    config = directory / "config.toml"
    config.write_text((_CONFIG + (_STARGZ if stargz else "")).format(root=directory, sockets=sockets))
    log, snapshots = directory / "containerd.log", directory / "stargz.log"
    with contextlib.ExitStack() as running:
        running.callback(shutil.rmtree, sockets, ignore_errors=True)
        running.callback(_unmount, directory, sockets)
        if stargz:
            running.enter_context(_daemon([stargz, sockets / "s", directory / "stargz"], snapshots, sockets / "s"))
        running.enter_context(_daemon(["containerd", "--config", config], log, sockets / "c"))
        yield Containerd(sockets / "c", snapshots if stargz else log)


@contextlib.contextmanager
def _daemon(argv: list[str | Path], log: Path, socket: Path) -> Iterator[None]:
    with log.open("wb") as out:
        process = proc.spawn(argv, stdout=out.fileno(), stderr=out.fileno(), env={"PATH": _PATH})
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerNotStarted(f"{argv[0]}: did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def _unmount(*folders: Path) -> None:
    for folder in folders:
        for point in reversed(kernel.mount_points(folder)):
            kernel.unmount(point.directory, force=True)

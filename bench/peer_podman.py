"""Peer: a full pull, then a start, by Debian's podman 4.3.1 with a container store of its own."""

from __future__ import annotations

import resource
import tempfile
from pathlib import Path
from types import TracebackType

from measure import Cost, measured
from scratch import Bench, need, remove, tool

#: podman asks for a million open files and as many processes as the kernel allows, and runc refuses what is
#: over the host's own limits without CAP_SYS_RESOURCE: ask for what any host has.
_OPEN_FILES = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 16_384)
_PROCESSES = 4_096


class Podman:
    """``pull`` and ``run``; crun 1.8 refuses hosts with hybrid cgroups, so runc."""

    def __init__(self, bench: Bench) -> None:
        need("podman", "runc", "conmon")
        self._bench = bench
        # podman refuses a runroot of more than 50 characters.
        self._run = Path(tempfile.mkdtemp(prefix="podman-"))
        self._root = bench.folder("podman")
        self._words: list[str | Path] = [tool("podman"), "--root", self._root, "--runroot", self._run]
        self._words += ["--storage-driver", "overlay", "--runtime", tool("runc")]
        self._words += ["--cgroup-manager", "cgroupfs", "--events-backend", "none"]

    def __enter__(self) -> Podman:  # noqa: PYI034  typing.Self is of Python 3.11
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        remove(self._root)
        remove(self._run)

    def pull(self, reference: str) -> Cost:
        return measured([*self._words, "pull", "-q", "--tls-verify=false", reference], log=self._bench.log)

    def run(self, reference: str, command: list[str]) -> Cost:
        limits = [f"--ulimit=nofile={_OPEN_FILES}:{_OPEN_FILES}", f"--ulimit=nproc={_PROCESSES}:{_PROCESSES}"]
        words = ["run", "--rm", "--network=host", "--tls-verify=false", *limits, reference, *command]
        return measured([*self._words, *words], log=self._bench.log)

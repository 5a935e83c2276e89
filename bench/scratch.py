"""Where a scenario works, and how cold it starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from record import PROJECT


class Unavailable(Exception):
    """This host or this tree lacks something that the scenario needs: the message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One call of a scenario: the environment, a fresh folder ``work``, a log, and whether the machine is ours.

    kept: what may outlive the scenario, since it is made outside of what is measured.
    exclusive: nothing else runs here, so the page cache may be dropped between contenders.
    """

    env: str
    work: Path
    kept: Path
    exclusive: bool

    @property
    def log(self) -> Path:
        return self.work / "log"

    def folder(self, name: str) -> Path:
        """A fresh folder below ``work``."""
        path = self.work / name
        remove(path)
        path.mkdir(parents=True)
        return path

    def cold(self, *paths: Path) -> None:
        """Forget cached pages: all of the machine's when it is ours, else those of the files below ``paths``."""
        os.sync()
        if self.exclusive:
            Path("/proc/sys/vm/drop_caches").write_text("3")
            return
        for path in paths:
            for folder, _, names in os.walk(path):
                for name in names:
                    forget(os.path.join(folder, name))  # noqa: PTH118  100,000 files


def forget(file: str) -> None:
    """Drop the page cache of one file."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        pass  # a pipe or a device has no pages
    finally:
        os.close(descriptor)


def warm(folder: Path) -> None:
    """Bring all files below ``folder``, or the file of that name, into the page cache."""
    for path in (folder, *folder.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(1 << 20):
                    pass


def remove(path: Path) -> None:
    """Remove a tree that may hold mounts of a peer: those are taken away first, deepest first."""
    inside = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mounted in sorted((one for one in inside if one == str(path) or one.startswith(f"{path}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mounted], check=False, capture_output=True)
    if path.exists():
        shutil.rmtree(path)


def need(*programs: str) -> None:
    """Raises Unavailable for the programs that are missing."""
    missing = [program for program in programs if shutil.which(program, path=search_path()) is None]
    if missing:
        raise Unavailable(f"missing: {', '.join(missing)}. Run make bench, which installs them.")


def need_root() -> None:
    if os.geteuid():
        raise Unavailable("this scenario mounts and makes network namespaces: run it as root")


def need_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise Unavailable(f"{folder} has {free / 1e9:.0f} GB free, this scenario needs {size / 1e9:.0f} GB")


def search_path() -> str:
    """PATH with the Go tools of tools/install-go-tools and the administrator's programs."""
    return f"{PROJECT / '.cache/go-tools'}:{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def tool(name: str) -> str:
    """The path of a program.

    Raises:
        Unavailable: it is not installed.
    """
    need(name)
    found = shutil.which(name, path=search_path())
    assert found is not None
    return found

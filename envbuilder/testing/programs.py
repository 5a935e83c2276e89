"""Programs of this host, with the libraries they load, as entries of a tree: something that a container can run."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from envbuilder.layer.tree import FILE, Entry, directory, file
from envbuilder.proc import run

_LIBRARY = re.compile(r"(/\S+) \(0x[0-9a-f]+\)")
_PASSWD = b"root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n"
_GROUP = b"root:x:0:\nalice:x:1000:\nvideo:x:44:alice\n"


def small_system(programs: Iterable[str]) -> tuple[Entry, ...]:
    """A root file system with ``programs`` of this host's PATH, users root and alice, and /tmp.

    Raises:
        ProgramMissing: there is no ldd. FileNotFoundError: this host lacks one of the programs.
    """
    files: set[Path] = set()
    for name in programs:
        found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
        if found is None:
            raise FileNotFoundError(f"{name}: not on this host")
        files.add(Path(found))
        files.update(Path(path) for path in _LIBRARY.findall(run(["ldd", found], check=False).stdout.decode()))
    system = [directory("tmp", 0o1777), file("etc/passwd", _PASSWD), file("etc/group", _GROUP)]
    for path in sorted(files):
        size = path.stat().st_size
        system.append(Entry(path=str(path).lstrip("/"), mode=FILE | 0o755, size=size, open=partial(io.FileIO, path)))
    return tuple(system)

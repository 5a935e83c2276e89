"""/usr/local/cuda over NVIDIA's wheels: where compilers and the loader look for a toolkit.

NVIDIA's wheels hold the toolkit in pieces: ``nvidia/cu13/{include,lib,bin}`` for most of CUDA 13,
``nvidia/<library>/{include,lib}`` for CUDA 12 and for cuDNN, NCCL and the like. They have no
unversioned ``libX.so``, which linkers ask for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envbuilder.layer.debian.system import System
from envbuilder.layer.tree import Entry, directory, file, symlink

#: Where NVIDIA's own packages put a toolkit, and what build systems look for first.
CUDA_HOME = "usr/local/cuda"
LOADER_CONF = "etc/ld.so.conf.d/envbuilder-cuda.conf"
_PARTS = ("bin", "include", "lib", "nvvm")
_VERSIONED = re.compile(r"(?P<stem>lib[^/]+\.so)\.(?P<version>[0-9.]+)\Z")


def toolkit_roots(system: System, site_packages: str) -> tuple[str, ...]:
    """Tree paths of the directories below ``<site_packages>/nvidia`` that hold a piece of the toolkit, sorted."""
    top = f"{site_packages}/nvidia"
    found = []
    for name in system.listdir(top):
        for path in (f"{top}/{name}", *(f"{top}/{name}/{sub}" for sub in system.listdir(f"{top}/{name}"))):
            if any(part in _PARTS for part in system.listdir(path)):
                found.append(path)
    inner = {f"{path}/{part}" for path in found for part in _PARTS}
    return tuple(sorted(path for path in found if path not in inner))


def loader_directories(system: System, roots: Sequence[str]) -> tuple[str, ...]:
    """Absolute paths of the library directories of ``roots`` that hold a shared library."""
    return tuple(
        f"/{root}/lib"
        for root in roots
        if any(
            placed.elf_flags
            for name in system.listdir(f"{root}/lib")
            if (placed := system.tree.get(f"{root}/lib/{name}")) is not None
        )
    )


def cuda_entries(system: System, roots: Sequence[str]) -> Iterator[Entry]:
    """The loader's configuration and the link farm; nothing without ``roots``."""
    if not roots:
        return
    lines = "".join(f"{directory}\n" for directory in loader_directories(system, roots))
    yield file(LOADER_CONF, lines.encode())
    for part, place in (("include", "include"), ("bin", "bin"), ("nvvm", "nvvm"), ("lib", "lib64")):
        sources = [f"{root}/{part}" for root in roots if system.listdir(f"{root}/{part}")]
        yield from _farm(system, f"{CUDA_HOME}/{place}", sources)
    libraries = [name for root in roots for name in system.listdir(f"{root}/lib")]
    yield from _unversioned(libraries)


def _farm(system: System, place: str, sources: Sequence[str]) -> Iterator[Entry]:
    """One link for what one source has; a directory of links for a directory that several have.

    The first source wins a file that several have: those are the same header of one toolkit.
    """
    owners: dict[str, list[str]] = {}
    for source in sources:
        for name in system.listdir(source):
            if name not in ("__init__.py", "__pycache__"):
                owners.setdefault(name, []).append(f"{source}/{name}")
    for name, paths in sorted(owners.items()):
        directories = [path for path in paths if system.listdir(path)]
        if len(directories) > 1:
            if (below := system.tree.get(f"{place}/{name}")) is not None and below.link:
                yield directory(f"{place}/{name}")  # a parent that had one source has a link there
            yield from _farm(system, f"{place}/{name}", directories)
        else:
            yield symlink(f"{place}/{name}", _relative(f"{place}/{name}", paths[0]))


def _unversioned(names: Sequence[str]) -> Iterator[Entry]:
    """``libX.so`` for the shortest of its versioned names, where there is none."""
    versions: dict[str, list[str]] = {}
    for name in names:
        if found := _VERSIONED.match(name):
            versions.setdefault(found["stem"], []).append(name)
    for stem, found_names in sorted(versions.items()):
        if stem not in names:
            yield symlink(f"{CUDA_HOME}/lib64/{stem}", min(found_names, key=lambda name: (len(name), name)))


def _relative(link: str, target: str) -> str:
    return "../" * link.count("/") + target

"""The image's own interpreter, unpacked on this host so that it can compile for the image.

It runs from its directory by its own loader and libc: no container, no chroot, no root, and
nothing of the host's Python. A .pyc made by another version would be ignored by the image.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from envbuilder.digest import Digest, canonical_json
from envbuilder.errors import HostError, SpecError
from envbuilder.layer.deb import deb_entries
from envbuilder.layer.kept_tree import kept_tree
from envbuilder.layer.pyc import LocalInterpreter
from envbuilder.layer.tree import Entry
from envbuilder.lock.model import Deb, Interpreter
from envbuilder.lock.source import ArtifactSource
from envbuilder.oci.platform import Platform
from envbuilder.paths import join_below

#: Raised when other files are unpacked, or in another way: an older directory is then not used.
_FORMAT = 1
#: Dynamic loaders (glibc's shlib-versions), in the multiarch directory.
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
#: Directories that an interpreter needs; documentation and dpkg's database stay packed.
_NEEDED = ("usr/bin/", "usr/lib/", "usr/lib64/", "etc/python")


class NoInterpreter(SpecError):
    """A lock holds no Debian package with the interpreter that it names."""

    hint = "Add python3.X-minimal of the environment's Python to [base] packages, then lock again."


class CannotUnpack(HostError):
    """The cache cannot take the interpreter: a full or read-only disk, or missing rights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterPackages:
    """The debs that an interpreter needs to compile.

    deciding: those whose bytes decide what it compiles to; libc6 because ``2.0 ** 0.5`` is folded
        by libm. running: libraries that it must load, which it does not use for compiling.
    """

    deciding: tuple[Deb, ...]
    running: tuple[Deb, ...]

    @property
    def identity(self) -> str:
        """What decides the bytes of a .pyc, of all that is unpacked."""
        return str(Digest.of(canonical_json([str(deb.digest) for deb in self.deciding])))


def interpreter_packages(debs: Iterable[Deb], python: Interpreter) -> InterpreterPackages:
    """Of ``debs``, those that make ``python`` run.

    Raises:
        NoInterpreter: one of them is missing.
    """
    by_name = {deb.name: deb for deb in debs}

    def find(*names: str) -> Iterator[Deb]:
        for name in names:
            if name not in by_name:
                raise NoInterpreter(f"lock: python {python.version}: no package {name}")
            yield by_name[name]

    return InterpreterPackages(
        deciding=tuple(find(f"python{python.version}-minimal", f"libpython{python.version}-minimal", "libc6")),
        running=tuple(find("libexpat1", "zlib1g")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """The same interpreter for this host's architecture, which compiles for one that cannot run here.

    A .pyc does not depend on the architecture: CPython marshals little endian and IEEE 754 everywhere, and both
    are 64 bits wide. Measured with Debian's 3.13.5, arm64 under emulation: 592 modules and 400 constants folded
    by libm, 0 differences (docs/decisions/0003).
    """

    packages: InterpreterPackages
    platform: Platform


def stand_in(packages: InterpreterPackages, debs: Iterable[Deb], python: Interpreter, host: Platform) -> StandIn | None:
    """Of ``debs``, a lock's for ``host``, what compiles as ``packages`` would; None when a version differs."""
    try:
        ours = interpreter_packages(debs, python)
    except NoInterpreter:
        return None
    same = all(one.version == two.version for one, two in zip(packages.deciding, ours.deciding, strict=True))
    return StandIn(packages=ours, platform=host) if same else None


def unpack_interpreter(
    packages: InterpreterPackages, artifacts: ArtifactSource, python: Interpreter, platform: Platform, *, cache: Path
) -> LocalInterpreter:
    """The interpreter of ``packages``, unpacked below ``cache`` unless it is there already, whole.

    Raises:
        as ``artifacts.file`` and ``deb_entries``; CannotUnpack: ``cache`` cannot be written.
    """
    everything = (*packages.deciding, *packages.running)
    key = Digest.of(canonical_json([_FORMAT, [str(deb.digest) for deb in everything]]))
    root = cache / f"python{python.version}-{key.hex[:32]}"

    def fill(directory: Path) -> None:
        _write((entry for deb in everything for entry in deb_entries(artifacts.file(deb), deb)), directory)

    try:
        kept_tree(root, fill)
    except OSError as error:
        raise CannotUnpack(
            f"{root}: cannot unpack the interpreter: {error}", hint=f"Make {cache} writable, with 30 MB free."
        ) from error
    libraries = root / "usr/lib" / platform.multiarch
    return LocalInterpreter(
        argv=(
            str(libraries / _LOADERS[platform.machine]),
            "--inhibit-cache",
            "--library-path",
            str(libraries),
            str(root / f"usr/bin/python{python.version}"),
        ),
        home=str(root / "usr"),
        version=python.version,
        identity=packages.identity,
    )


def _write(entries: Iterable[Entry], root: Path) -> None:
    """Write files; links after all of them, so that nothing is written through one. No owners, no setuid."""
    links: list[Entry] = []
    for entry in entries:
        if not entry.path.startswith(_NEEDED):
            continue
        target = join_below(root, entry.path, source="interpreter")
        if entry.is_symlink or entry.link:
            links.append(entry)
        elif entry.is_file:
            target.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, entry.mode & 0o755)
            with os.fdopen(descriptor, "wb") as out:
                if entry.open is not None:
                    with entry.open() as stream:
                        shutil.copyfileobj(stream, out, 1 << 20)
    for entry in links:
        target = join_below(root, entry.path, source="interpreter")
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.is_symlink:
            target.symlink_to(entry.link)
        else:
            os.link(join_below(root, entry.link, source="interpreter"), target, follow_symlinks=False)

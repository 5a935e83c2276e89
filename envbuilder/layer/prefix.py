"""The venv-shaped directory that holds every Python package: where things go in it, and its skeleton.

Source: packaging.python.org, "Binary distribution format", "Installing a wheel"; sysconfig's ``venv`` scheme.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from envbuilder.digest import Digest
from envbuilder.layer.claims import Claim
from envbuilder.layer.tree import Entry, directory, file, symlink
from envbuilder.lock.model import Interpreter

#: Tree path of the prefix in every image: fixed, because scripts and .pyc files name it.
PREFIX = "opt/env"
#: Where Debian's python3.X packages put the interpreter.
_HOME = "/usr/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """Tree paths below one prefix for one interpreter."""

    root: str
    python: Interpreter

    @property
    def site_packages(self) -> str:
        """The scheme paths purelib and platlib, which are one directory in a venv."""
        return f"{self.root}/lib/python{self.python.version}/site-packages"

    @property
    def interpreter(self) -> str:
        """Absolute path that shebangs name."""
        return f"/{self.root}/bin/python3"

    @property
    def cache_tag(self) -> str:
        """What stands in the names of .pyc files (PEP 3147): ``cpython-313``."""
        return "cpython-" + self.python.version.replace(".", "")

    def scheme(self, key: str, package: str) -> str | None:
        """Where the ``.data`` scheme ``key`` of ``package``, a normalised name, goes; None if there is none."""
        return {
            "purelib": self.site_packages,
            "platlib": self.site_packages,
            "scripts": f"{self.root}/bin",
            "data": self.root,
            "headers": f"{self.root}/include/site/python{self.python.version}/{package}",
        }.get(key)

    def real(self, path: str) -> str:
        """``path`` without the ``lib64 -> lib`` link of the skeleton, through which installers write."""
        alias = f"{self.root}/lib64/"
        return f"{self.root}/lib/{path.removeprefix(alias)}" if path.startswith(alias) else path

    def recorded(self, path: str) -> str:
        """``path`` as RECORD names it: relative to site-packages."""
        inside = self.site_packages + "/"
        if path.startswith(inside):
            return path.removeprefix(inside)
        return "../../../" + path.removeprefix(self.root + "/")


def prefix_entries(prefix: str, python: Interpreter, *, theirs: str = "") -> Iterator[Entry]:
    """The skeleton of the prefix, as ``python3 -m venv`` lays it out, without activation scripts.

    theirs: absolute path of the interpreter of a base of others, whose own packages can then be imported too.
    """
    where = Prefix(root=prefix, python=python)
    yield file(f"{prefix}/pyvenv.cfg", _configuration(python, theirs))
    yield symlink(f"{prefix}/bin/python{python.version}", theirs or f"{_HOME}/python{python.version}")
    yield symlink(f"{prefix}/bin/python3", f"python{python.version}")
    yield symlink(f"{prefix}/bin/python", "python3")
    yield directory(f"{prefix}/include")
    yield directory(where.site_packages)
    yield symlink(f"{prefix}/lib64", "lib")


def prefix_claims(prefix: str, python: Interpreter) -> Mapping[str, Claim]:
    """What the skeleton puts at each path: a wheel must not replace ``bin/python3``."""
    return {
        entry.path: Claim(Digest.of(entry.link.encode() or _configuration(python, "")), entry.mode & 0o7777)
        for entry in prefix_entries(prefix, python)
        if not entry.is_directory
    }


def _configuration(python: Interpreter, theirs: str) -> bytes:
    """pyvenv.cfg: ``site`` finds the prefix by it."""
    executable = theirs or f"{_HOME}/python{python.version}"
    return (
        f"home = {executable.rpartition('/')[0] or '/'}\n"
        f"include-system-site-packages = {'true' if theirs else 'false'}\n"
        f"version = {python.version}\n"
        f"executable = {executable}\n"
    ).encode()

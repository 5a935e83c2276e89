"""uv as a program: one question about Python packages, asked in a folder of its own, answered as text.

The question is a ``pyproject.toml``: only there can a package be bound to one index (tool.uv.sources).
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from uv import find_uv_bin

from envbuilder.digest import Digest
from envbuilder.lock.model import Interpreter
from envbuilder.lock.settings import DEFAULT, Indexes, address_of, is_folder, is_page
from envbuilder.lock.tags import glibc_minor
from envbuilder.lock.wanted import Wanted
from envbuilder.oci.platform import Platform
from envbuilder.proc import Runner

#: The highest glibc minor that uv 0.13.9 takes in --python-platform; a newer glibc runs older wheels too.
_UV_NEWEST_GLIBC_MINOR = 40
#: Seconds; the AI environment resolves in 20 s with a cold cache.
_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTarget:
    """What the wheels must run on. ``full_version`` is the interpreter's, such as ``3.13.5``."""

    python: Interpreter
    full_version: str
    platform: Platform
    glibc: str

    @property
    def uv_platform(self) -> str:
        """The value of uv's --python-platform."""
        return f"{self.platform.machine}-manylinux_2_{min(glibc_minor(self.glibc), _UV_NEWEST_GLIBC_MINOR)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uv:
    """How uv is started on this machine, and for this environment.

    environment: variables for uv; its configuration in them and in the user's files holds.
    extra: roles of the indexes that come before the default one, in order.
    size_of: bytes of the file at an address, for indexes whose pages do not say (PEP 503); None if unknown.
    bytes_of: fetches the file at an address: its digest and size, for indexes that promise none or a wrong one;
        None when the address does not answer.
    distrust: whether ``bytes_of`` is asked about every new file of an index other than the default one.
    chosen: told of each new file that is chosen, and its address.
    """

    runner: Runner
    environment: Mapping[str, str]
    indexes: Indexes
    extra: Sequence[str] = ()
    size_of: Callable[[str], int | None] = lambda _: None
    bytes_of: Callable[[str], tuple[Digest, int] | None] = lambda _: None
    distrust: bool = False
    chosen: Callable[[Digest, str], None] = lambda _digest, _url: None


def ask(want: Wanted, output: str, target: PythonTarget, uv: Uv) -> str:
    """The pylock.toml that uv gives for ``want``; what stands in ``output``, a pylock.toml too, is preferred.

    Raises:
        ProgramFailed: uv found no answer; its explanation is in it.
    """
    return _compile(want, output, target, uv, ["--output-file", "pylock.toml", "--format", "pylock.toml"])


def ask_indexes(want: Wanted, target: PythonTarget, uv: Uv) -> dict[str, str]:
    """The address of each package's index, which uv's pylock.toml does not say; ``want`` pins every package."""
    options = ["--output-file", "pins.txt", "--no-annotate", "--emit-index-annotation"]
    text = _compile(want, "", target, uv, options)
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==.*\n    # from (\S+)$", text, re.MULTILINE)
    return {canonicalize_name(name): unquote(url) for name, url in found}


def _compile(want: Wanted, output: str, target: PythonTarget, uv: Uv, options: Sequence[str]) -> str:
    argv = [find_uv_bin(), "pip", "compile", "pyproject.toml", "--no-header", "--quiet", *options]
    argv += ["--only-binary", ":all:", "--python-platform", target.uv_platform]
    argv += ["--python-version", target.full_version, "--python", sys.executable, "--no-python-downloads"]
    variables = {**uv.environment, "NO_COLOR": "1"}
    if DEFAULT in uv.indexes.for_uv:
        variables = {name: value for name, value in variables.items() if name not in _DEFAULT_VARIABLES}
        if is_folder(uv.indexes.for_uv[DEFAULT]) and all(is_folder(uv.indexes.all[role]) for role in uv.extra):
            argv += ["--offline"]
    files = {"constraints": want.constraints, "overrides": want.overrides, "excludes": want.excluded}
    with tempfile.TemporaryDirectory(prefix="envbuilder-uv-") as temporary:
        # A folder that only we can read: an address may hold a credential, which must not be in argv, which is public.
        folder = Path(temporary)
        (folder / "pyproject.toml").write_text(_question(want, uv))
        (folder / options[1]).write_text(output)
        for name, lines in files.items():
            if lines:
                (folder / f"{name}.in").write_text("\n".join(lines) + "\n")
                argv += [f"--{name}", f"{name}.in"]
        uv.runner(argv, env=variables, cwd=folder, timeout_s=_TIMEOUT_S)
        return (folder / options[1]).read_text()


#: Variables that would put another default index in front of the one that we name.
_DEFAULT_VARIABLES = frozenset({"UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_NO_INDEX"})


def _question(want: Wanted, uv: Uv) -> str:
    """The pyproject.toml. uv reads the user's configuration too, but no project's above it."""
    lines = ["[project]", 'name = "the-environment"', 'version = "0"', "dependencies = ["]
    lines += [f"    {_text(requirement)}," for requirement in want.requires]
    lines += ["]", "", "[tool.uv]"]
    sources = {name: role for name in sorted(map(_name, want.requires)) if (role := want.source_of(name))}
    if sources:
        lines += ["", "[tool.uv.sources]"]
        lines += [f"{_text(name)} = {{ index = {_text(role)} }}" for name, role in sources.items()]
    for role in dict.fromkeys(sources.values()):
        if role not in uv.extra and role != DEFAULT:
            lines += _index(role, uv.indexes.all[role], explicit=True)
    for role in uv.extra:
        if role in uv.indexes.for_uv or role in sources.values():
            lines += _index(role, uv.indexes.all[role])
    if DEFAULT in uv.indexes.for_uv or DEFAULT in sources.values():
        lines += _index(DEFAULT, uv.indexes.all[DEFAULT])
    return "\n".join(lines) + "\n"


def _index(role: str, url: str, *, explicit: bool = False) -> list[str]:
    lines = ["", "[[tool.uv.index]]", f"name = {_text(role)}", f"url = {_text(address_of(url))}"]
    lines += ["default = true"] if role == DEFAULT else ["explicit = true"] if explicit else []
    return [*lines, 'format = "flat"'] if is_folder(url) or is_page(url) else lines


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


def _text(value: str) -> str:
    """A TOML basic string; what JSON escapes, TOML reads."""
    return json.dumps(value, ensure_ascii=False)

"""A project on disk: where it is, which environments it declares, and reading one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from envbuilder.digest import Digest
from envbuilder.errors import SpecError
from envbuilder.spec.toml import read_document

if TYPE_CHECKING:
    from envbuilder.oci.platform import Platform
    from envbuilder.spec.model import EnvSpec

#: Bytes of one [[files]] source; larger content belongs in a package.
_MAX_FILE = 64 << 20


class NoProject(SpecError):
    """No folder from here upwards holds ``images/``."""


class UnknownEnvironment(SpecError):
    """The project declares no environment of that name."""


class SourceEscapes(SpecError):
    """A [[files]] source leads out of the environment's folder, or is no regular file."""


def find_project(start: Path) -> Path:
    """The nearest folder, ``start`` or above it, that holds ``images/``.

    Raises:
        NoProject: there is none.
    """
    here = start.resolve()
    for folder in (here, *here.parents):
        if (folder / "images").is_dir():
            return folder
    raise NoProject(f"{start}: no folder from here upwards holds images/", hint="Name the project with --project DIR.")


def environments(project: Path) -> tuple[str, ...]:
    """Names of the environments that ``project`` declares, sorted."""
    return tuple(sorted(file.parent.name for file in (project / "images").glob("*/env.toml")))


def environment_folder(project: Path, name: str) -> Path:
    """The folder of environment ``name``; its files are below it."""
    return project / "images" / name


def lock_file(project: Path, name: str, platform: Platform) -> Path:
    """Where the lock of environment ``name`` for ``platform`` stands, whether or not it exists."""
    return project / "lockfiles" / name / f"{platform.file_stem}.lock.toml"


def digests_file(project: Path, name: str, platform: Platform) -> Path:
    """Where the digests stand that the lock of environment ``name`` is known to become, whether or not it exists."""
    return project / "lockfiles" / name / f"{platform.file_stem}.digests"


def load_spec(project: Path, name: str) -> EnvSpec:
    """Environment ``name`` of ``project``, as declared in ``images/<name>/env.toml``.

    Raises:
        UnknownEnvironment: there is no such file. SpecErrors: it is wrong.
    """
    # Every verb looks for its project; what reads a declaration is a third of what a start would import.
    from envbuilder.spec.parse import MAX_SIZE, NAME, parse  # noqa: PLC0415  seldom needed

    if not NAME.match(name):
        raise UnknownEnvironment(f"{name[:100]!r}: not an environment's name")
    folder = environment_folder(project, name)
    file = folder / "env.toml"
    label = f"images/{name}/env.toml"
    data = read_document(file, most=MAX_SIZE, source=label)
    if data is None:
        known = ", ".join(environments(project)) or "none"
        raise UnknownEnvironment(f"{label}: no such file; declared are: {known}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"{label}: not UTF-8: {error.reason} at byte {error.start}") from error
    spec = parse(
        text,
        file=label,
        digest_of=lambda source: file_digest(folder, source),
        text_of=lambda source: file_text(folder, source),
    )
    if spec.name != name:
        raise SpecError(f"{label}: name: want {name!r}, as the folder is called, got {spec.name!r}")
    return spec


def lineage(project: Path, name: str) -> Iterator[EnvSpec]:
    """Environment ``name``, then the one it extends, and so on to the one with a base.

    Raises:
        SpecError: a cycle, or what ``load_spec`` raises.
    """
    seen: list[str] = []
    while name:
        if name in seen:
            raise SpecError(f"extends: a cycle: {' -> '.join([*seen, name])}")
        seen.append(name)
        spec = load_spec(project, name)
        yield spec
        name = spec.extends


def file_digest(folder: Path, source: str) -> Digest | None:
    """The digest of the file ``source`` of an environment's ``folder``; None if it is missing.

    Raises:
        SourceEscapes: a symbolic link leads out of the folder, or it is no regular file.
    """
    data = _read(folder, source)
    return None if data is None else Digest.of(data)


def file_text(folder: Path, source: str) -> str | None:
    """The text of the file ``source`` of an environment's ``folder``; None if it is missing.

    Raises:
        SourceEscapes: as ``file_digest``. SpecError: it is not UTF-8.
    """
    data = _read(folder, source)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"{source}: not UTF-8: {error.reason} at byte {error.start}") from error


def _read(folder: Path, source: str) -> bytes | None:
    try:
        file = (folder / source).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, below Python 3.13
        raise SourceEscapes(f"{source}: a symbolic link that leads nowhere") from error
    if not file.is_relative_to(folder.resolve()):
        raise SourceEscapes(f"{source}: leads out of the environment's folder")
    try:
        return read_document(file, most=_MAX_FILE, source=source)
    except SpecError as error:
        raise SourceEscapes(str(error)) from error

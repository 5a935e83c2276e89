"""``[[files]]``: files of the project that go into the image as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from envbuilder.digest import Digest
from envbuilder.errors import SpecError
from envbuilder.layer.tree import Entry, file
from envbuilder.lock.model import LockedFile
from envbuilder.paths import entry_path, join_below

#: Bytes of one file: it is meant for configuration and scripts, artefacts come as packages.
_MAX_FILE = 64 << 20


class FileChanged(SpecError):
    """A file of the project is missing, too large, or not the one that was locked."""

    hint = "Lock the environment again."


def file_entries(files: Sequence[LockedFile], folder: Path) -> Iterator[Entry]:
    """The entries of ``files``, whose sources are below ``folder``, owned by root.

    Raises:
        FileChanged: a source is not what the lock says. UnsafePath: a path leads elsewhere.
    """
    for rule in files:
        source = join_below(folder, rule.source, source="files")
        try:
            with source.open("rb") as stream:
                data = stream.read(_MAX_FILE + 1)
        except OSError as error:
            raise FileChanged(f"files: {rule.source}: {error.strerror}") from error
        if len(data) > _MAX_FILE:
            raise FileChanged(
                f"files: {rule.source}: want at most {_MAX_FILE} bytes", hint="Put large data into a package."
            )
        if (got := Digest.of(data)) != rule.digest:
            raise FileChanged(f"files: {rule.source}: want {rule.digest}, got {got}")
        yield file(entry_path(rule.path, source="files"), data, rule.mode)


def overlay(below: Iterable[Entry], above: Iterable[Entry]) -> Iterator[Entry]:
    """Every entry of both; where they share a path, the one of ``above``: what the user gives wins."""
    chosen = {entry.path: entry for entry in below}
    chosen.update((entry.path, entry) for entry in above)
    yield from chosen.values()

"""Whether a command line was started before, and all that its start was decided from is the same: then it starts at
once (mount/warm.py). Anything else goes the ordinary way.

It imports little, as every call of the command imports it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: A reference that names a digest, of a registry: no tag, no environment of a project.
_PINNED, _HEX = "@sha256:", 64
#: Options of ``run`` that say how the container is, each with a value. What _VARIABLE gives may be a secret: it is for
#: the one start, and not kept.
_VARIABLE = "--env"
_OPTIONS = (_VARIABLE, "--workdir", "--user", "--gpus")
#: Variables of ours that settings are made of, besides ENVBUILDER_* (settings.py).
_ENVIRONMENT = ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR")
#: Raised when a Decision means something else.
_FORMAT = 1
#: What makes config.json: with another of these it may be another (a version is not enough while one is being written).
_MAKERS = ("mount/run.py", "mount/container/bundle.py", "mount/container/cdi.py", "mount/container/users.py")


class Asked(NamedTuple):
    """A start that may have been decided before: under which ``key`` in ``folder``."""

    folder: Path
    key: str


class _Words(NamedTuple):
    """A command line. deciding: what says how the container is. env: its further variables. command: what it runs."""

    deciding: tuple[str, ...]
    env: Mapping[str, str]
    command: tuple[str, ...]


def started_as_decided(argv: Sequence[str], environ: Mapping[str, str]) -> int | None:
    """Start what ``argv`` asks for as it was decided before; its status. None: it is to go the ordinary way."""
    words = _split(argv)
    if words is None or not _starts(environ).is_dir():
        return None
    from envbuilder.mount import warm  # noqa: PLC0415  other verbs do without

    asked = _asked(words.deciding, environ)
    decision = warm.find(asked.folder, asked.key) if asked else None
    return warm.start(decision, words.command, words.env) if decision else None


def asked_for(argv: Sequence[str], environ: Mapping[str, str]) -> Asked | None:
    """What the start that ``argv`` asks for is kept as, once it is decided; None: it is decided each time."""
    words = _split(argv)
    return _asked(words.deciding, environ) if words else None


def _split(argv: Sequence[str]) -> _Words | None:
    """``argv`` as command_last.py reads it; None: not a start that may be kept."""
    if not argv or argv[0] != "run" or os.geteuid() != 0:
        return None
    deciding: list[str] = []
    env: dict[str, str] = {}
    reference = ""
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if word.startswith("-"):
            name, equals, value = word.partition("=")
            if name not in _OPTIONS or not (equals or words):
                return None
            value = value if equals else words.pop(0)
            if name != _VARIABLE:
                deciding += [name, value]
            elif value.find("=") > 0:
                variable, _, text = value.partition("=")
                env[variable] = text
            else:
                return None
        elif not reference:
            reference = word
        else:
            words.insert(0, word)
            break
    name, _, digest = reference.partition(_PINNED)
    if "/" not in name or len(digest) != _HEX:
        return None
    return _Words((*deciding, reference), env, tuple(words))


def _starts(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("ENVBUILDER_STATE") or "/run/envbuilder").absolute() / "starts"


def _asked(deciding: Sequence[str], environ: Mapping[str, str]) -> Asked | None:
    import hashlib  # noqa: PLC0415  other verbs do without
    import json  # noqa: PLC0415  see above

    from envbuilder import __version__  # noqa: PLC0415  see above
    from envbuilder.mount.chunks.whole import boot_id  # noqa: PLC0415  see above
    from envbuilder.mount.container.host import host_files, host_limits, specifications  # noqa: PLC0415  see above

    try:
        facts = [
            [_FORMAT, __version__, boot_id()],
            _stats(Path(__file__).parents[1] / name for name in _MAKERS),
            deciding,
            [os.isatty(0) and os.isatty(1)],
            sorted((name, value) for name, value in environ.items() if name.startswith("ENVBUILDER_")),
            [environ.get(name) for name in _ENVIRONMENT],
            _settings_files(environ),
            host_files(),
            host_limits(),
            specifications(),
        ]
        key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    except OSError:
        return None
    return Asked(_starts(environ), key)


def _settings_files(environ: Mapping[str, str]) -> list[tuple[str, int, int, int]]:
    """The files that settings are read from, and the folders that make them count (app.py): the user's, and those of
    projects above the working directory.
    """
    config = Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")
    here = Path.cwd()
    files = [config / "envbuilder" / "config.toml"]
    for folder in (here, *here.parents):
        files += [folder / "images", folder / "envbuilder.toml"]
    return _stats(files)


def _stats(files: Iterable[Path]) -> list[tuple[str, int, int, int]]:
    """Path and kind of those that are there; of files their size, and when they were last changed."""
    found = []
    for file in files:
        with suppress(OSError):
            of = file.stat()
            size_and_time = (of.st_size, of.st_mtime_ns) if stat.S_ISREG(of.st_mode) else (0, 0)
            found.append((str(file), stat.S_IFMT(of.st_mode), *size_and_time))
    return found

"""TOML documents: their bytes from a disk that holds anything, and the one import of a TOML reader."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

from envbuilder.errors import SpecError, SpecErrors


def parse_toml(text: str, *, source: str) -> dict[str, Any]:
    """The document in ``text``.

    Raises:
        SpecErrors: not TOML.
    """
    # A command of a machine without any such file is over sooner than this is imported.
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415  see above
    else:
        import tomli as tomllib  # noqa: PLC0415  see above
    try:
        document = tomllib.loads(text)
        _check_integers(document)
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: Python refuses integers of more than 4300 digits, and dates that do not exist.
        raise SpecErrors(source, [f"not TOML: {error}"]) from error
    return document


def _check_integers(document: dict[str, Any]) -> None:
    """Refuse what other readers do (TOML 1.0, "Integer"): in hexadecimal it may be so large that it cannot be shown."""
    todo: list[Any] = [document]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += value.values()
        elif isinstance(value, list):
            todo += value
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValueError("an integer of more than 64 bits")


def read_document(file: Path, *, most: int, source: str) -> bytes | None:
    """The bytes of ``file``, ``most`` or fewer; None when there is no such file.

    Raises:
        SpecError: it is too large, no regular file, or cannot be read.
    """
    try:
        # O_NONBLOCK: a FIFO must not hang the open.
        opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpecError(f"{source}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise SpecError(f"{source}: want a regular file")
    with os.fdopen(opened, "rb") as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise SpecError(f"{source}: want at most {most} bytes")
    return data

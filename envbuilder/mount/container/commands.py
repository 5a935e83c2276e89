"""Is the command in the image? Asked before a container is made, so that the answer is ours and in words."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from envbuilder.errors import SpecError
from envbuilder.mount.unpack.inroot import open_in


class CommandNotFound(SpecError):
    """The image has no such program, or it is not one; ``exit_code`` is that of a shell: 127 or 126."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message, hint="Check the command; everything after the image's name is one.")
        self.exit_code = exit_code


def check_command(
    root: Path, words: Sequence[str], env: Mapping[str, str], cwd: str, *, outside: Sequence[str]
) -> None:
    """Check that the program ``words[0]`` is in the tree at ``root``, as the runtime will look for it.

    outside: places of the container that are not of the tree (binds): what lies there is not judged.

    Raises:
        CommandNotFound: it is not there or not executable.
    """
    name, path = words[0], env.get("PATH", "")
    if "/" in name:
        places = [posixpath.join(cwd, name)]
    else:
        places = [posixpath.join(cwd, folder or ".", name) for folder in path.split(":")]
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = [_mode(top, place) for place in places]
    finally:
        os.close(top)
    if any(stat.S_ISREG(mode) and mode & 0o111 for mode in found):
        return
    if any(posixpath.commonpath([place, hidden]) == hidden for place in places for hidden in outside):
        return
    where = "" if "/" in name else f" in its PATH ({path})"
    if any(found):
        raise CommandNotFound(f"run: the image's {name!r} is not executable", exit_code=126)
    raise CommandNotFound(f"run: the image's {name!r} is not there{where}", exit_code=127)


def _mode(top: int, path: str) -> int:
    """st_mode of what ``path`` leads to; 0 when there is nothing."""
    try:
        opened = open_in(top, path, os.O_PATH)
    except OSError:
        return 0
    try:
        return os.fstat(opened).st_mode
    finally:
        os.close(opened)

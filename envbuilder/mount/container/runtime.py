"""Which container runtime works on this host: found out by starting a container, not by its version.

crun 1.8 refuses hosts with a hybrid cgroup hierarchy and runc does not; other hosts differ in other
ways. The answer is kept in the state directory until the next boot or until the program changes.

crun is asked to make no control groups: the job stays in ours, under the limits that a scheduler has put us, and
starts earlier. What device control groups keep from a container it cannot have then either: it may make no device
nodes (bundle.py), and those of its image are none (program.py).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.errors import EnvbuilderError, HostError
from envbuilder.mount.chunks.whole import boot_id
from envbuilder.mount.container.program import Program
from envbuilder.mount.host import kernel
from envbuilder.proc import ProgramFailed, Runner, run

#: Tried in this order: crun starts in half the time.
RUNTIMES = ("crun", "runc")
_NO_GROUPS = ("--cgroup-manager=disabled",)
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class NoRuntime(HostError):
    """No container runtime works here; the message says what each of them said."""

    hint = "Install runc or crun (Debian: apt install runc)."


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeTried:
    """A runtime and whether a container started; ``why`` is what it said when not. path: "" when missing."""

    name: str
    path: str
    works: bool
    why: str = ""
    program: Program | None = None


def find_runtime(state_dir: Path, wanted: str = "auto", *, runner: Runner = run) -> Program:
    """The first runtime that works; with ``wanted``, a name or a path, that one only.

    Raises:
        NoRuntime: none does.
    """
    tried = []
    for name in RUNTIMES if wanted == "auto" else (wanted,):
        result = try_runtime(name, state_dir, runner=runner)
        if result.program is not None:
            return result.program
        tried.append(f"{name}: {result.why}")
    raise NoRuntime("run: no container runtime works: " + "; ".join(tried))


def try_runtime(name: str, state_dir: Path, *, runner: Runner = run) -> RuntimeTried:
    """Whether the runtime ``name`` starts a container here; kept in ``state_dir`` for this boot."""
    path = shutil.which(name, path=_SEARCH_PATH)
    if path is None:
        return RuntimeTried(name=name, path="", works=False, why="not installed")
    found = os.stat(path)  # noqa: PTH116 - a string
    own = kernel.in_own_users()
    key = f"2 {path} {found.st_size} {found.st_mtime_ns} {boot_id()}{' own users' if own else ''}"
    kept = state_dir / f"runtime-{Path(name).name}.json"
    with suppress(OSError, ValueError, TypeError):
        value = json.loads(kept.read_bytes())
        if value.pop("key") == key:
            return _read(value)
    result, final = RuntimeTried(name=name, path=path, works=False), False
    for program in _ways(path, own=own):
        result, final = _try(name, program, runner)
        if result.works or not final:
            break
    if final:
        with suppress(OSError):
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            program_value = result.program and result.program._asdict()
            value = {"name": name, "path": path, "works": result.works, "why": result.why, "program": program_value}
            kept.write_text(json.dumps({**value, "key": key}))
    return result


def _read(value: dict[str, Any]) -> RuntimeTried:
    program = value.pop("program")
    if program is None:
        return RuntimeTried(**value)
    return RuntimeTried(**value, program=Program(**{**program, "options": tuple(program["options"])}))


def _ways(path: str, *, own: bool) -> Iterator[Program]:
    """How ``path`` may work here, the best first. own: in a user name space of ours, where nothing is a device."""
    remount = "" if own else shutil.which("mount", path=_SEARCH_PATH)
    if Path(path).name == "crun" and remount is not None:
        yield Program(path, _NO_GROUPS, hides=False, remount=remount)
        # Mounts that came with a user name space cannot be taken away in it.
        if not own and kernel.has_unified():
            yield Program(path, _NO_GROUPS, hides=True, remount=remount)
    yield Program(path)


def _try(name: str, program: Program, runner: Runner) -> tuple[RuntimeTried, bool]:
    """Whether ``program`` starts a container, or why not; and whether that would be the same another time."""
    from envbuilder.mount.container.trial import start_nothing  # noqa: PLC0415  once a boot

    def attempt() -> None:
        if program.remount:
            kernel.private_mounts()
        if program.hides:
            kernel.hide_unified()
        start_nothing(program, runner)

    try:
        kernel.in_thread(attempt)
    except (EnvbuilderError, OSError) as error:
        why = str(error).strip().rpartition("\n")[2][:400]
        # No room, no time: the next try may go otherwise.
        final = isinstance(error, ProgramFailed) and error.status >= 0
        return RuntimeTried(name=name, path=program.path, works=False, why=why), final
    return RuntimeTried(name=name, path=program.path, works=True, program=program), True

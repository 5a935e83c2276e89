"""Which container runtime works on this host: found out by starting a container, not by its version.

crun 1.8 refuses hosts with a hybrid cgroup hierarchy and runc does not; other hosts differ in other
ways. The answer is kept in the state directory until the next boot or until the program changes.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import struct
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envbuilder.errors import EnvbuilderError, HostError
from envbuilder.mount.container.bundle import ProcessOptions, runtime_config
from envbuilder.mount.container.cdi import Edits
from envbuilder.mount.container.users import ContainerUser
from envbuilder.mount.host.kernel import in_own_users
from envbuilder.mount.host.rootless import adapted
from envbuilder.oci.config import ImageConfig
from envbuilder.oci.platform import Platform
from envbuilder.proc import ProgramFailed, Runner, run

#: Tried in this order: crun starts in half the time.
RUNTIMES = ("crun", "runc")
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TIMEOUT_S = 20.0
#: Machine code of _exit(0).
_EXIT = {
    "x86_64": (62, bytes.fromhex("31ffb83c0000000f05")),
    "aarch64": (183, bytes.fromhex("000080d2a80b80d2010000d4")),
}


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


def find_runtime(state_dir: Path, wanted: str = "auto", *, runner: Runner = run) -> Path:
    """The first runtime that works; with ``wanted``, a name or a path, that one only.

    Raises:
        NoRuntime: none does.
    """
    tried = []
    for name in RUNTIMES if wanted == "auto" else (wanted,):
        result = try_runtime(name, state_dir, runner=runner)
        if result.works:
            return Path(result.path)
        tried.append(f"{name}: {result.why}")
    raise NoRuntime("run: no container runtime works: " + "; ".join(tried))


def try_runtime(name: str, state_dir: Path, *, runner: Runner = run) -> RuntimeTried:
    """Whether the runtime ``name`` starts a container here; kept in ``state_dir`` for this boot."""
    path = shutil.which(name, path=_SEARCH_PATH)
    if path is None:
        return RuntimeTried(name=name, path="", works=False, why="not installed")
    found = os.stat(path)  # noqa: PTH116 - a string
    own = " own users" if in_own_users() else ""
    key = f"{path} {found.st_size} {found.st_mtime_ns} {_BOOT_ID.read_text().strip()}{own}"
    kept = state_dir / f"runtime-{Path(name).name}.json"
    with suppress(OSError, ValueError, TypeError):
        value = json.loads(kept.read_bytes())
        if value.pop("key") == key:
            return RuntimeTried(**value)
    try:
        _start_nothing(path, runner)
        result = RuntimeTried(name=name, path=path, works=True)
    except (EnvbuilderError, OSError) as error:
        result = RuntimeTried(name=name, path=path, works=False, why=str(error).strip().rpartition("\n")[2][:400])
        if not isinstance(error, ProgramFailed) or error.status < 0:
            return result  # no room, no time: the next try may go otherwise
    with suppress(OSError):
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        value = {"name": name, "path": path, "works": result.works, "why": result.why, "key": key}
        kept.write_text(json.dumps(value))
    return result


def _start_nothing(path: str, runner: Runner) -> None:
    """Run a container that exits at once, made like the real ones.

    Raises:
        ProgramFailed: what the runtime said.
    """
    with tempfile.TemporaryDirectory(prefix="envbuilder-probe-") as name:
        bundle = Path(name)
        program = bundle / "rootfs" / "exit"
        program.parent.mkdir()
        program.write_bytes(exit_program(platform.machine()))
        program.chmod(0o755)
        config = ImageConfig(platform=Platform.parse(platform.machine()), diff_ids=(), command=("/exit",))
        value = adapted(runtime_config(config, ProcessOptions(), ContainerUser(), Edits(), root=program.parent))
        (bundle / "config.json").write_text(json.dumps(value))
        argv = [path, "--root", str(bundle / "runtime"), "run", "--bundle", str(bundle), bundle.name]
        runner(argv, timeout_s=_TIMEOUT_S)


def exit_program(machine: str) -> bytes:
    """A static ELF program for ``machine`` that exits with status 0: one segment, no library.

    Raises:
        HostError: a machine that we do not know.
    """
    if machine not in _EXIT:
        raise HostError(f"run: want a machine of {', '.join(_EXIT)}, got {machine}")
    number, code = _EXIT[machine]
    base, header_size = 0x400000, 64 + 56
    size = header_size + len(code)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, number, 1, base + header_size, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    return header + segment + code

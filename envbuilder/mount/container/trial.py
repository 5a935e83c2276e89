"""A container that does nothing: whether a runtime can start it on this host."""

from __future__ import annotations

import json
import platform
import struct
import tempfile
from pathlib import Path

from envbuilder.errors import HostError
from envbuilder.mount.container.bundle import ProcessOptions, runtime_config
from envbuilder.mount.container.cdi import Edits
from envbuilder.mount.container.program import Program
from envbuilder.mount.container.users import ContainerUser
from envbuilder.mount.host.rootless import adapted
from envbuilder.oci.config import ImageConfig
from envbuilder.oci.platform import Platform
from envbuilder.proc import Runner

_TIMEOUT_S = 20.0
#: Machine code of _exit(0).
_EXIT = {
    "x86_64": (62, bytes.fromhex("31ffb83c0000000f05")),
    "aarch64": (183, bytes.fromhex("000080d2a80b80d2010000d4")),
}


def start_nothing(runtime: Program, runner: Runner) -> None:
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
        (bundle / "config.json").write_text(json.dumps(runtime.config(value)))
        argv, _ = runtime.argv(bundle, bundle.name)
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

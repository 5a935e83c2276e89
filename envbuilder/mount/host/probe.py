"""What this host can do for a start, tried rather than guessed, and which way would be taken.

Each try is made in a mount name space of its own, in a thread that ends: it leaves nothing behind.
"""

from __future__ import annotations

import os
import platform
import struct
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from envbuilder.errors import EnvbuilderError
from envbuilder.mount.container.cdi import has_kind
from envbuilder.mount.container.host import CDI_DIRECTORIES
from envbuilder.mount.container.runtime import RUNTIMES, try_runtime
from envbuilder.mount.host import kernel, loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """Something a start may need: ``ok``, and ``why`` (not, or what was found)."""

    name: str
    ok: bool
    why: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


def probe(state_dir: Path, cache_dir: Path) -> tuple[Capability, ...]:
    """Everything that a start may need, in the order in which it is wanted.

    cache_dir: where images' metadata will lie. EROFS takes files of some file systems only: not of a tmpfs,
        which /tmp is from Debian 13 on.
    """
    return (
        _tried("root", _root),
        _tried("erofs from files", lambda: _erofs_files(cache_dir)),
        _tried("erofs over loop devices", _erofs_loop),
        _tried("fuse", _fuse),
        _tried("overlay", _overlay),
        *(_runtime(name, state_dir) for name in RUNTIMES),
        _tried("gpu (cdi)", _gpu),
    )


def chosen_mode(found: tuple[Capability, ...]) -> str:
    """How an image would be mounted: "erofs", "loop", "unpack", or "" when not at all."""
    ok = {capability.name for capability in found if capability.ok}
    if "root" not in ok:
        return ""
    if {"fuse", "erofs from files"} <= ok:
        return "erofs"
    if {"fuse", "erofs over loop devices"} <= ok:
        return "loop"
    return "fuse" if "fuse" in ok else "unpack"


def _tried(name: str, attempt: Callable[[], str]) -> Capability:
    try:
        return Capability(name=name, ok=True, why=attempt())
    except (EnvbuilderError, OSError) as error:
        return Capability(name=name, ok=False, why=str(error))


def _runtime(name: str, state_dir: Path) -> Capability:
    tried = try_runtime(name, state_dir)
    return Capability(name=name, ok=tried.works, why=tried.why or f"{tried.path} started a container")


def _root() -> str:
    if os.geteuid() != 0:
        raise PermissionError("we are not root: EROFS and overlay mounts are refused")
    return "we are root of a user namespace of our own: run works" if kernel.in_own_users() else "we are root"


def _gpu() -> str:
    if not has_kind("nvidia.com/gpu"):
        raise FileNotFoundError(f"no specification of nvidia.com/gpu in {', '.join(map(str, CDI_DIRECTORIES))}")
    return "the host describes its GPUs"


def _erofs_files(cache_dir: Path) -> str:
    # What does not exist yet will be made in the nearest folder that does.
    beside = next(folder for folder in (cache_dir, *cache_dir.absolute().parents) if folder.is_dir())
    return _apart(lambda folder: kernel.mount_erofs(_image(folder), [folder / "device"], folder / "target"), beside)


def _erofs_loop() -> str:
    def attempt(folder: Path) -> None:
        attached = [loop.attach(_image(folder)), loop.attach(folder / "device")]
        try:
            kernel.mount_erofs(attached[0][0], [attached[1][0]], folder / "target")
            # The name space that ends takes its mount along a moment later; the devices shall be free when we return.
            kernel.unmount(folder / "target")
        finally:
            for _, opened in attached:
                os.close(opened)

    return _apart(attempt)


def _fuse() -> str:
    def attempt(folder: Path) -> None:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            kernel.mount_fuse(device, folder / "target", name="envbuilder-probe")
        finally:
            os.close(device)

    return _apart(attempt)


def _overlay() -> str:
    def attempt(folder: Path) -> None:
        kernel.mount_tmpfs(folder, name="envbuilder-probe")
        for name in ("lower", "upper", "work", "merged"):
            (folder / name).mkdir()
        folders = (folder / name for name in ("lower", "upper", "work", "merged"))
        kernel.mount_overlay(*folders, name="envbuilder-probe", thrown_away=True)

    return _apart(attempt)


def _apart(attempt: Callable[[Path], None], beside: Path | None = None) -> str:
    """Try something with an empty folder, made in ``beside``, in a name space of its own; what to say if it worked."""
    with tempfile.TemporaryDirectory(prefix="envbuilder-probe-", dir=beside) as name:
        (Path(name) / "target").mkdir()

        def body() -> None:
            kernel.private_mounts()
            attempt(Path(name))

        kernel.in_thread(body)
    return f"works on Linux {platform.release()}"


def _image(folder: Path) -> Path:
    """An EROFS image of an empty root directory with one device slot (lazy_start.md 2.1 to 2.3)."""
    (folder / "device").write_bytes(bytes(4096))
    image = bytearray(4096)
    root = 40  # inode slot, 32 bytes each: behind super block and device table
    struct.pack_into("<IIIBBHQQII", image, 1024, 0xE0F5E1E2, 0, 0, 12, 0, root, 1, 0, 0, 1)
    struct.pack_into("<I", image, 1024 + 80, 8)
    struct.pack_into("<HH", image, 1024 + 86, 1, 9)
    struct.pack_into("<64sII", image, 1152, b"probe", 1, 1)
    names = struct.pack("<QHBBQHBB", root, 24, 2, 0, root, 25, 2, 0) + b"..."
    struct.pack_into("<HHHHIIIIHH", image, root * 32, 2 << 1, 0, 0o40755, 2, len(names), 0, 0xFFFFFFFF, 1, 0, 0)
    image[root * 32 + 32 : root * 32 + 32 + len(names)] = names
    file = folder / "image"
    file.write_bytes(image)
    return file

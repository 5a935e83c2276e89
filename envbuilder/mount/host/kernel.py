"""The mount system calls, through ctypes: EROFS, overlay, FUSE, bind; and who is mounted where.

mount(8) is not used: util-linux 2.38 makes a loop device behind one's back and refuses a regular
file as ``device=`` (lazy_start.md 5.3). The new calls (fsopen, fsconfig, fsmount, move_mount; Linux
5.2) come first because mount(2) takes one page of options and 127 devices do not fit; their context
also says in words what it did not like.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from envbuilder.errors import HostError

_libc = ctypes.CDLL(None, use_errno=True)
_T = TypeVar("_T")

# asm-generic/unistd.h: the same numbers on x86_64 and aarch64.
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _MOUNT_SETATTR = 429, 430, 431, 432, 442
# linux/mount.h
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _CMD_CREATE = 0, 1, 6
_MOVE_MOUNT_F_EMPTY_PATH = 4
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV = 1, 2, 4
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 1, 2, 4, 32
_MS_BIND, _MS_REC, _MS_SLAVE = 1 << 12, 1 << 14, 1 << 19
_MNT_FORCE, _MNT_DETACH, _UMOUNT_NOFOLLOW = 1, 2, 8
_CLONE_NEWNS = 0x20000
_CLONE_NEWUSER = 0x10000000
_AT_FDCWD = -100
_PR_SET_PDEATHSIG = 1

_READ_AHEAD = Path("/sys/class/bdi")
_UNIFIED = Path("/sys/fs/cgroup/unified")

#: Extra devices of one EROFS mount that we try: the layers of an image plus none (style: MAX_LAYERS).
MAX_DEVICES = 127

#: Paths that need no escaping in any mount option, of a size that fsconfig(2) takes.
_PLAIN_OPTION = re.compile(r"[A-Za-z0-9/._@%+=~ -]{1,255}")

_HINTS = {
    errno.EPERM: "Run as root of the host: file systems such as EROFS cannot be mounted in a user namespace.",
    errno.EACCES: "Run as root of the host: mounting was refused.",
    errno.ENODEV: "Load the kernel module of this file system, or run `envbuilder doctor` to see what would work.",
    errno.ENOTBLK: "Use Linux 6.12 or newer and keep `chunks` off a tmpfs, or set mount.mode to auto for loop devices.",
    errno.EMFILE: "Raise the open-file limit (ulimit -n).",
    errno.ENOSPC: "Raise fs.mount-max (sysctl) or unmount something.",
}


class MountRefused(HostError):
    """The kernel refused a mount; ``errno`` says why in a number, the message in words."""

    def __init__(self, what: str, target: Path, number: int, log: str = "") -> None:
        words = f"{what} at {target}: {os.strerror(number)} (errno {number})" + (
            f"; the kernel says: {log}" if log else ""
        )
        super().__init__(words, hint=_HINTS.get(number, "Run `envbuilder doctor` to see what this host can mount."))
        self.errno = number


class StillBusy(HostError):
    """Something still uses a mounted tree."""

    hint = "Close the programs whose files or working directory are in it, or unmount with --force."


class MountPoint(NamedTuple):
    """A line of /proc/self/mountinfo (proc(5)): where, which file system, from what."""

    directory: Path
    fstype: str
    source: str


def _check(result: int, what: str, target: Path, log: Callable[[], str] = str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise MountRefused(what, target, number, log())
    return result


def _context_log(context: int) -> str:
    """What the kernel wrote about this context: a line a read, ENODATA at the end."""
    lines = []
    with suppress(OSError):
        while line := os.read(context, 4096):
            lines.append(line.decode(errors="replace").strip())
    return "; ".join(lines)


def mount(
    fstype: str,
    options: Sequence[tuple[str, str]],
    target: Path,
    *,
    read_only: bool,
    nosuid: bool,
    what: str = "",
) -> None:
    """Mount a new ``fstype`` with ``options`` at ``target``; an option with value "" is a flag.

    Device nodes of an image are never devices: those of a container are made for it, elsewhere.

    Raises:
        MountRefused: with the kernel's errno and its words.
    """
    what = what or fstype
    flags = _ATTR_NODEV | (_ATTR_RDONLY if read_only else 0) | (_ATTR_NOSUID if nosuid else 0)
    context = int(_libc.syscall(_FSOPEN, fstype.encode(), _FSOPEN_CLOEXEC))
    if context < 0 and ctypes.get_errno() == errno.ENOSYS:
        _mount_old(fstype, options, target, flags=flags, what=what)
        return
    _check(context, what, target)
    try:
        # "ro" is for the super block (else a read-only loop device is EACCES), the attribute for the mount.
        for name, value in [*options, *([("ro", "")] if read_only else [])]:
            command, text = (_SET_STRING, os.fsencode(value)) if value else (_SET_FLAG, None)
            done = int(_libc.syscall(_FSCONFIG, context, command, name.encode(), text, 0))
            _check(done, f"{what}: option {name}={value}", target, lambda: _context_log(context))
        done = int(_libc.syscall(_FSCONFIG, context, _CMD_CREATE, None, None, 0))
        _check(done, what, target, lambda: _context_log(context))
        tree = int(_libc.syscall(_FSMOUNT, context, _FSMOUNT_CLOEXEC, flags))
        _check(tree, what, target, lambda: _context_log(context))
        try:
            path = os.fsencode(target)
            done = int(_libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, path, _MOVE_MOUNT_F_EMPTY_PATH))
            _check(done, what, target)
        finally:
            os.close(tree)
    finally:
        os.close(context)


def _mount_old(fstype: str, options: Sequence[tuple[str, str]], target: Path, *, flags: int, what: str) -> None:
    """The same by mount(2), where fsopen(2) does not exist; these flags have the same numbers there."""
    source = next((value for name, value in options if name == "source"), fstype)
    data = ",".join(f"{name}={value}" if value else name for name, value in options if name != "source")
    done = _libc.mount(source.encode(), os.fsencode(target), fstype.encode(), flags, data.encode())
    _check(done, what, target)


def mount_erofs(metadata: Path, devices: Sequence[Path], target: Path) -> None:
    """Mount the EROFS image ``metadata`` read-only; its device slots are ``devices``, in order.

    ``metadata`` is input to a parser in the kernel: verify its digest first (lazy_start.md 5.3).
    A regular file needs Linux 6.12; give block devices (loop) before that.

    Raises:
        MountRefused: ENOTBLK where regular files are not taken.
    """
    with _as_options([metadata, *devices]) as (source, *names):
        options = [("source", source), *(("device", name) for name in names)]
        mount("erofs", options, target, read_only=True, nosuid=True, what=f"EROFS {metadata.name}")


def mount_fuse(device: int, target: Path, *, name: str) -> None:
    """Mount the FUSE file system that ``device``, an open /dev/fuse, will serve.

    allow_other: EROFS reads its devices with the credentials of whoever reads a file.
    """
    options = [
        ("source", name),
        ("fd", str(device)),
        ("rootmode", "40000"),
        ("user_id", "0"),
        ("group_id", "0"),
        ("allow_other", ""),
        ("default_permissions", ""),
    ]
    mount("fuse", options, target, read_only=True, nosuid=True, what="FUSE")


def mount_overlay(
    lower: Path, upper: Path, work: Path, target: Path, *, name: str, thrown_away: bool, nosuid: bool = False
) -> None:
    """Mount ``lower`` with a writable layer ``upper`` over it.

    upper and work: empty, on one ordinary file system (never FUSE, EROFS or another overlay).
    thrown_away: nothing in ``upper`` needs to survive a crash, so no fsync reaches the disk
    (``volatile``, Linux 5.10).
    """
    with _as_options([lower, upper, work]) as names:
        options = [("source", name), *zip(("lowerdir", "upperdir", "workdir"), names, strict=True)]
        if thrown_away:
            options.append(("volatile", ""))
        if in_own_users():
            options.append(("userxattr", ""))  # trusted.* is for root of the host (Linux 5.11)
        mount("overlay", options, target, read_only=False, nosuid=nosuid)


@contextmanager
def _as_options(paths: Sequence[Path]) -> Iterator[tuple[str, ...]]:
    """``paths`` as mount options take them: overlay splits at ':', fsconfig(2) takes at most 255 bytes.

    What does not fit goes by the name of an open descriptor.
    """
    opened: list[int] = []
    names: list[str] = []
    try:
        for path in paths:
            name = str(path)
            if not _PLAIN_OPTION.fullmatch(name):
                opened.append(os.open(path, os.O_PATH | os.O_CLOEXEC))
                name = f"/proc/self/fd/{opened[-1]}"
            names.append(name)
        yield tuple(names)
    finally:
        for descriptor in opened:
            os.close(descriptor)


def mount_tmpfs(target: Path, *, name: str) -> None:
    """Mount an empty file system in memory."""
    mount("tmpfs", [("source", name), ("mode", "0755")], target, read_only=False, nosuid=True)


def bind(source: Path, target: Path, *, read_only: bool, nosuid_nodev: bool = False) -> None:
    """Show the tree at ``source`` at ``target`` too."""
    done = _libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND | _MS_REC, None)
    _check(done, f"bind of {source}", target)
    flags = (_MS_RDONLY if read_only else 0) | (_MS_NOSUID | _MS_NODEV if nosuid_nodev else 0)
    if flags:
        done = _libc.mount(None, os.fsencode(target), None, _MS_BIND | _MS_REMOUNT | flags, None)
        _check(done, f"bind of {source} with its flags", target)


def unmount(target: Path, *, force: bool = False) -> bool:
    """Unmount what is on top at ``target``; False if nothing is mounted there.

    force: requests that wait for a FUSE server get an error (MNT_FORCE) and a tree still in use
    disappears from the name space at once, from the kernel when its last user goes (MNT_DETACH).

    Raises:
        StillBusy: it is in use, and not ``force``.
    """
    flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if force else 0)
    if force:
        _libc.umount2(os.fsencode(target), _UMOUNT_NOFOLLOW | _MNT_FORCE)
    if _libc.umount2(os.fsencode(target), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOENT):
        return False
    if number == errno.EBUSY:
        raise StillBusy(f"unmount of {target}: it is in use")
    raise MountRefused("unmount", target, number)


def abort_fuse(target: Path) -> None:
    """Let the FUSE file system at ``target`` fail every request from now on; it stays mounted.

    Raises:
        OSError: it is gone.
    """
    # Held, so that it is busy: MNT_FORCE aborts the connection of what it cannot unmount, too (umount(2)).
    held = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _libc.umount2(os.fsencode(target), _UMOUNT_NOFOLLOW | _MNT_FORCE)
    finally:
        os.close(held)


def mount_points(below: Path | None = None) -> tuple[MountPoint, ...]:
    """What is mounted in this name space, oldest first; with ``below``, at that directory or in it."""
    return tuple(
        point
        for point in _mountinfo(Path("/proc/thread-self/mountinfo").read_bytes())
        if below is None or point.directory == below or below in point.directory.parents
    )


def _mountinfo(text: bytes) -> Iterator[MountPoint]:
    for line in text.split(b"\n"):  # a name may hold \r, which splitlines() takes for an end
        before, _, after = line.partition(b" - ")
        fields, kind = before.split(b" "), after.split(b" ")
        if len(fields) < 5 or len(kind) < 2:
            continue
        yield MountPoint(
            directory=Path(os.fsdecode(_unescape(fields[4]))),
            fstype=kind[0].decode(errors="replace"),
            source=os.fsdecode(_unescape(kind[1])),
        )


def _unescape(text: bytes) -> bytes:
    r"""proc(5): space, tab, newline and backslash are written \040, \011, \012, \134."""
    for code in (b"040", b"011", b"012", b"134"):
        text = text.replace(b"\\" + code, bytes([int(code, 8)]))
    return text


def read_ahead_names() -> frozenset[str]:
    """Names of the EROFS mounts from files that there are, as sysfs has them (/sys/class/bdi)."""
    try:
        return frozenset(name for name in os.listdir(_READ_AHEAD) if name.startswith("erofs"))  # noqa: PTH208 - names
    except OSError:
        return frozenset()


def set_read_ahead(names: Iterable[str], size: int) -> None:
    """Let these mounts read ``size`` bytes ahead. Costs speed and no more where sysfs cannot be written."""
    for name in names:
        with suppress(OSError):
            (_READ_AHEAD / name / "read_ahead_kb").write_text(str(size >> 10))


def private_mounts() -> None:
    """Give the calling thread a mount name space of its own, which dies with its last process.

    What is mounted in it is never seen outside; what the host unmounts later goes here too (slave).

    Raises:
        MountRefused: not root.
    """
    _check(_libc.unshare(_CLONE_NEWNS), "a private mount name space", Path("/"))
    _check(_libc.mount(None, b"/", None, _MS_REC | _MS_SLAVE, None), "a private mount name space", Path("/"))


def has_unified() -> bool:
    """Whether this host has both kinds of control groups at once, the unified ones as usual (cgroups(7))."""
    return any(point.directory == _UNIFIED and point.fstype == "cgroup2" for point in mount_points())


def hide_unified() -> None:
    """Unmount the unified control groups of a hybrid host in our mount name space, which ``private_mounts`` made.

    crun then takes it for a host with the older kind, on which it works.
    """
    unmount(_UNIFIED, force=True)


def own_users() -> None:
    """Move this process, of one thread, into user and mount name spaces of its own (user_namespaces(7)).

    Raises:
        MountRefused: the kernel allows none, or there are other threads.
    """
    _check(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS), "a user name space", Path("/"))


def in_own_users() -> bool:
    """Whether we are in a user name space that is not the host's: not every user exists."""
    return Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"]


def enter_mounts(namespace: int) -> None:
    """Move the calling thread into the mount name space of an open ``/proc/PID/ns/mnt``."""
    done = _libc.unshare(0x200)  # CLONE_FS: the root and working directory are shared between threads until now
    _check(done, "entering a mount name space", Path("/"))
    _check(_libc.setns(namespace, _CLONE_NEWNS), "entering a mount name space", Path("/"))


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when ``parent``, who forked it, ends (prctl(2), PR_SET_PDEATHSIG)."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        os.kill(os.getpid(), signal.SIGKILL)


def in_thread(function: Callable[[], _T]) -> _T:
    """The result of ``function``, called in a thread that ends after it: name spaces belong to threads."""
    import threading  # noqa: PLC0415  a start without a daemon has one thread

    results: list[_T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=body, name="mount-namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]

"""What of the cache may go: a plan that a person sees first, then the removal of just that.

Beside what uses the cache a collection takes nothing of the last day, as one of a layout (gc.py), and only what nobody
misses; one that is alone takes what it was told to.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuilder.errors import HostError
from envbuilder.store.cache import NOTED_S, Cached, alone_in, contents, opened_folder, record_of, used_at_s
from envbuilder.store.files import only_one
from envbuilder.store.gc import GRACE_S


class NotRemoved(HostError):
    """The disk refuses to remove a part of the cache; the rest went."""

    hint = "Do it as the user whose cache it is."


@dataclass(frozen=True, slots=True, kw_only=True)
class CachePlan:
    """What a collection would remove: ``going``, last used before ``before_s``.

    young: how many were used since. kept: how many would go, but were named. busy: others use the cache now.
    """

    going: tuple[Cached, ...]
    young: int
    kept: int
    before_s: float
    busy: bool

    @property
    def size(self) -> int:
        """Bytes that would be free."""
        return sum(each.size for each in self.going)


def plan_cache_gc(
    directory: Path, *, unused_for_s: float, keep: Collection[str] = (), now_s: float | None = None
) -> CachePlan:
    """What of the cache ``directory`` nobody used for ``unused_for_s`` seconds; what ``keep`` names stays.

    keep: digests, their 64 digits.
    """
    now_s = time.time() if now_s is None else now_s
    with alone_in(directory) as alone:
        return _plan(contents(directory), unused_for_s, keep, now_s, busy=not alone)


def collect_cache(directory: Path, *, unused_for_s: float, keep: Collection[str] = ()) -> tuple[CachePlan, int]:
    """Remove what ``plan_cache_gc`` gives, as far as nobody used it since; the plan, and bytes that were freed.

    Whoever begins to use the cache meanwhile waits until that is done.

    Raises:
        NotRemoved: it is another user's, or read-only.
    """
    with alone_in(directory) as alone:
        plan = _plan(contents(directory), unused_for_s, keep, time.time(), busy=not alone)
        freed, refusals = 0, []
        for each in plan.going:
            try:
                freed += each.size if _remove(directory, each, plan.before_s) else 0
            except OSError as error:  # noqa: PERF203 - one file of another user must not keep the others
                refusals.append(f"{directory / each.path}: {error.strerror}")
        if refusals:
            raise NotRemoved(f"cache: freed {freed} bytes; {len(refusals)} of {len(plan.going)} stay: {refusals[0]}")
        return plan, freed


def _plan(
    found: Sequence[Cached], unused_for_s: float, keep: Collection[str], now_s: float, *, busy: bool
) -> CachePlan:
    before_s = now_s - (max(unused_for_s, GRACE_S + NOTED_S) if busy else unused_for_s)
    old = [each for each in found if each.used_at_s <= before_s and (each.shared or not busy)]
    going = [each for each in old if each.path.rpartition("/")[2] not in keep]
    return CachePlan(
        going=tuple(sorted(going, key=lambda each: (each.used_at_s, each.path))),
        young=len(found) - len(old),
        kept=len(old) - len(going),
        before_s=before_s,
        busy=busy,
    )


def _remove(directory: Path, what: Cached, before_s: float) -> bool:
    """Remove ``what`` unless somebody used it since; whether it is gone. It is judged while nobody can ask for it."""
    folder, _, name = what.path.rpartition("/")
    with opened_folder(directory, folder) as inside:
        if inside is None:
            return False
        try:
            return (_remove_tree if what.tree else _remove_file)(inside / name, before_s)
        except (FileNotFoundError, BlockingIOError):
            return False


def _remove_file(file: Path, before_s: float) -> bool:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # NFS locks what is open for writing; where nobody can lock, the time alone says.
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.ENOTSUP):
                raise
        if used_at_s(os.fstat(fd)) > before_s:
            return False
        file.unlink()
    finally:
        os.close(fd)
    return True


def _remove_tree(tree: Path, before_s: float) -> bool:
    """Take the tree's name away first: killed in the middle, nothing is left that looks whole."""
    record, aside = record_of(tree), tree.with_name(f".{tree.name}.{secrets.token_hex(4)}")
    remembered = record.exists()
    with only_one(record, wait=False):
        if remembered and used_at_s(record.lstat()) > before_s:
            return False
        try:
            tree.rename(aside)
        except OSError:
            if not remembered:
                record.unlink()
            raise
        record.unlink()
    shutil.rmtree(aside)
    return True

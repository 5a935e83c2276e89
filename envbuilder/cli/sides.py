"""Locks by the names that people give them: an environment, one at a git revision, or a file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from envbuilder.cli.app import App
from envbuilder.cli.predictions import read_predicted
from envbuilder.cli.project import read_lock
from envbuilder.digest import Digest
from envbuilder.errors import SpecError
from envbuilder.layer.plan import AnyPlan, plan
from envbuilder.lock.codec import MAX_SIZE, load
from envbuilder.lock.diff import Piece, pieces
from envbuilder.lock.model import Lock
from envbuilder.lock.predicted import Predicted
from envbuilder.lock.predicted import load as load_predicted
from envbuilder.oci.platform import Platform
from envbuilder.proc import ProgramFailed, run
from envbuilder.spec.parse import NAME
from envbuilder.spec.project import digests_file, lock_file
from envbuilder.spec.toml import read_document

#: A revision of git, as far as it may stand on a command line: no option, no range.
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@{}~^-]*\Z")


class NoSuchLock(SpecError):
    """A lock was named that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A lock with what is known beside it. chain: the locks of what it extends, itself last; () when one is missing."""

    name: str
    lock: Lock
    chain: tuple[Lock, ...]
    predicted: Predicted | None

    @property
    def plans(self) -> tuple[AnyPlan, ...]:
        return plan(self.chain) if self.chain and not (self.lock.system and not self.lock.system.base) else ()

    @property
    def keys(self) -> dict[str, Digest] | None:
        return {each.id: each.key for each in self.plans} or None

    def pieces(self, *, by_plan: bool = True) -> tuple[Piece, ...]:
        """The lock's layers."""
        return pieces(self.lock, keys=self.keys if by_plan else None, predicted=self.predicted)


def open_side(app: App, text: str, platform: Platform) -> Side:
    """The lock that ``text`` names: ``ENV``, ``REVISION:ENV`` or the path of a lock file.

    Raises:
        NoSuchLock: there is none. InvalidLock: it is none.
    """
    if NAME.match(text):
        lock = _need(read_lock(app.need_project(), text, platform), text)
        chain = _chain(lock, lambda name: read_lock(app.need_project(), name, platform))
        return Side(name=text, lock=lock, chain=chain, predicted=read_predicted(app.need_project(), lock))
    revision, colon, name = text.rpartition(":")
    if colon and NAME.match(name) and _REVISION.match(revision):
        lock = _need(_lock_at(app.need_project(), revision, name, platform), text)
        chain = _chain(lock, lambda name: _lock_at(app.need_project(), revision, name, platform))
        data = _show(app.need_project(), revision, digests_file(app.need_project(), name, platform))
        predicted = load_predicted(data, source=f"{text}: digests") if data is not None else None
        return Side(name=text, lock=lock, chain=chain, predicted=predicted)
    data = read_document(Path(text), most=MAX_SIZE, source=text)
    if data is None:
        raise NoSuchLock(f"{text}: no such lock", hint="Name an environment, REVISION:ENV or a lock file.")
    lock = load(data, source=text)
    return Side(name=text, lock=lock, chain=(), predicted=None)


def _need(lock: Lock | None, text: str) -> Lock:
    if lock is None:
        raise NoSuchLock(f"{text}: has no lock", hint="Lock it first: envbuilder lock ENV.")
    return lock


def _chain(lock: Lock, parent_of: object) -> tuple[Lock, ...]:
    chain = [lock]
    while chain[-1].parent:
        parent = parent_of(chain[-1].parent.name) if callable(parent_of) else None
        if not isinstance(parent, Lock):
            return ()
        chain.append(parent)
    return tuple(reversed(chain))


def _lock_at(project: Path, revision: str, name: str, platform: Platform) -> Lock | None:
    data = _show(project, revision, lock_file(project, name, platform))
    return None if data is None else load(data, source=f"{revision}:{name}")


def _show(project: Path, revision: str, file: Path) -> bytes | None:
    """The bytes of ``file`` at ``revision``; None when it was not there."""
    path = f"{revision}:./{file.relative_to(project)}"
    if not run(["git", "-C", project, "cat-file", "-t", f"{revision}^{{commit}}"], check=False).stdout:
        raise NoSuchLock(f"{revision}: no such revision of {project}")
    try:
        return run(["git", "-C", project, "show", path]).stdout
    except ProgramFailed:
        return None

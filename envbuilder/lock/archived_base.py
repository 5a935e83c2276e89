"""The image of others below a lock, beside its artefacts in an archive: whole, byte for byte, under its own digest.

It stays an image, which any client can pull from the archive's repository by that digest; the archive's index names it,
so that whatever keeps the archive keeps it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from envbuilder.digest import Descriptor
from envbuilder.errors import EnvbuilderError, IntegrityError
from envbuilder.lock.model import BaseImage, Lock
from envbuilder.oci.manifest import Manifest, parse_document
from envbuilder.store.copy import CopyPlan, copy, copy_plan
from envbuilder.store.target import NotFound, Target

#: What needs no place of the base.
_COPY = "Where another archive has this lock and its base, copy that: envbuilder copy OLD NEW"


class OtherBase(IntegrityError):
    """The manifest of a base names other layers than the lock: the lock was changed by hand."""

    hint = "Lock the environment again."


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseCopy:
    """How an archive gets a base. source: who has what it lacks. plan: what that is."""

    source: Target
    plan: CopyPlan


def base_below(locks: Sequence[Lock]) -> BaseImage | None:
    """The image of others that the first of ``locks`` is laid over."""
    system = locks[0].system
    return system.base if system else None


def plan_base(target: Target, base: BaseImage, place: Callable[[], Target]) -> BaseCopy:
    """What must move so that ``target`` has all of ``base``.

    place: opens where it is. Where nothing is missing nobody is asked: the base's own registry may be gone by then.

    Raises:
        NotFound: the place has it not. OtherBase: see there. Whatever the targets raise.
    """
    copying = _held(target, base)
    if copying is None:
        with _advice():
            source = place()
            copying = BaseCopy(source=source, plan=copy_plan(source, source.lookup(str(base.manifest)), target))
    document = parse_document(copying.plan.document, source=f"{copying.source.name}: {base.manifest}")
    wanted = (base.config, tuple((each.digest, each.size) for each in base.layers))
    if not isinstance(document, Manifest) or wanted != (
        document.config.digest,
        tuple((each.digest, each.size) for each in document.layers),
    ):
        raise OtherBase(f"{copying.source.name}: {base.manifest}: its layers are not those that the lock names")
    return copying


def _held(target: Target, base: BaseImage) -> BaseCopy | None:
    try:
        plan = copy_plan(target, target.lookup(str(base.manifest)), target)
    except NotFound:
        return None
    return None if plan.blobs else BaseCopy(source=target, plan=plan)


def copy_base(copying: BaseCopy, target: Target, sent: Callable[[int], None]) -> None:
    """Do what ``copying`` says.

    Raises:
        DigestMismatch: the source gave other bytes. Whatever the targets raise.
    """

    def moved(_blob: Descriptor, size: int) -> None:
        sent(size)

    with _advice():
        copy(copying.source, copying.plan.root, target, plan=copying.plan, progress=moved, finish=False)


@contextlib.contextmanager
def _advice() -> Iterator[None]:
    """Say what helps where the place of a base is at fault, not the archive."""
    try:
        yield
    except EnvbuilderError as error:
        if getattr(error, "copy_side", "source") == "source":
            error.hint = f"{error.hint} {_COPY}".lstrip()
        raise

"""The image of others below a lock, beside its artefacts in an archive: whole, byte for byte, under its own digest.

It stays an image, which any client can pull from the archive's repository by that digest; the archive's index names it,
so that whatever keeps the archive keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envbuilder.digest import Descriptor
from envbuilder.errors import IntegrityError
from envbuilder.lock.model import BaseImage, Lock
from envbuilder.oci.manifest import Manifest, parse_document
from envbuilder.store.copy import CopyPlan, copy, copy_plan
from envbuilder.store.target import NotFound, Target


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

    copy(copying.source, copying.plan.root, target, plan=copying.plan, progress=moved, finish=False)

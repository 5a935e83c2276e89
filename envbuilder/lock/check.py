"""Is a lock still the answer to its declaration? Offline and pure."""

from __future__ import annotations

from envbuilder.errors import SpecError
from envbuilder.lock.codec import digest
from envbuilder.lock.model import Lock
from envbuilder.oci.platform import Platform
from envbuilder.spec.model import EnvSpec


class StaleLock(SpecError):
    """A declaration changed after its lock was made."""

    def __init__(self, name: str, reasons: tuple[str, ...], platform: Platform) -> None:
        hint = f"Run: envbuilder lock {name} --platform {platform}"
        super().__init__(f"{name}: stale lock: {'; '.join(reasons)}", hint=hint)
        self.reasons = reasons


def stale_reasons(
    spec: EnvSpec, platform: Platform, lock: Lock | None, parent_lock: Lock | None = None
) -> tuple[str, ...]:
    """Why ``lock`` must be made anew for ``spec``; empty when it need not.

    Args:
        spec: the declaration as it is now.
        platform: the platform asked for.
        lock: its lock, or None when there is none.
        parent_lock: the parent's lock as it is now, when the environment extends one.
    """
    if lock is None:
        return (f"no lock for {platform}",)
    reasons = []
    if lock.name != spec.name:
        reasons.append(f"is the lock of {lock.name!r}")
    if lock.platform != platform:
        reasons.append(f"is for {lock.platform}")
    if lock.spec_digest != spec.digest:
        reasons.append("the declaration or one of its files changed")
    if (lock.parent.name if lock.parent else "") != spec.extends:
        reasons.append("extends another environment")
    elif lock.parent and parent_lock is None:
        reasons.append(f"the parent {spec.extends!r} has no lock")
    elif lock.parent and parent_lock and lock.parent.lock_digest != digest(parent_lock):
        reasons.append(f"the lock of the parent {spec.extends!r} changed")
    return tuple(reasons)


def require_fresh(spec: EnvSpec, platform: Platform, lock: Lock | None, parent_lock: Lock | None = None) -> Lock:
    """``lock``, which is the answer to ``spec``.

    Raises:
        StaleLock: it is not.
    """
    if reasons := stale_reasons(spec, platform, lock, parent_lock):
        raise StaleLock(spec.name, reasons, platform)
    assert lock is not None
    return lock

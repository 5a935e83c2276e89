"""Copy what refers to an image (signatures, SBOMs, traces) after the image itself, and list it at the other end."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from envbuilder.digest import Descriptor, Digest
from envbuilder.errors import IntegrityError
from envbuilder.oci.artifact import plain
from envbuilder.oci.manifest import Index, parse_document
from envbuilder.store.copy import DEFAULT_JOBS, MAX_MANIFESTS, copy
from envbuilder.store.movement import Progress
from envbuilder.store.referrers import attach_manifests, read_referrer, referrers
from envbuilder.store.target import SerialTarget, Target

#: Referrers of referrers that are followed: a signature of an SBOM of an image is two.
MAX_LEVELS = 3
#: Referrers copied at a time: a build attaches four, of a few kB each.
_TOGETHER = 4


class TooManyReferrers(IntegrityError):
    """An image has more referrers than anyone attaches in good faith."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferrersReport:
    """What was copied: the referrers, and bytes."""

    referrers: tuple[Descriptor, ...]
    copied_bytes: int


def copy_referrers(
    source: Target,
    root: Descriptor,
    target: Target,
    *,
    types: Collection[str] | None = None,
    jobs: int = DEFAULT_JOBS,
    progress: Progress | None = None,
) -> ReferrersReport:
    """Let ``target``, which has ``root``, have the referrers of all its manifests too, listed there as here.

    types: only referrers of these artifact types.

    Raises:
        TooManyReferrers: over a cap. ForeignReferrer: a list names what is no referrer. As any copy.
    """

    def one(pair: tuple[Descriptor, Descriptor]) -> tuple[bytes, int]:
        subject, each = pair
        data = _bytes(source, each, subject)
        return data, copy(source, plain(each), target, jobs=jobs, progress=progress, finish=False).copied_bytes

    done: dict[Digest, Descriptor] = {}
    moved = 0
    level = manifests_of(source, root)
    for _ in range(MAX_LEVELS):
        found = [(subject, each) for subject in level for each in referrers(source, subject)]
        if types is not None:
            found = [(subject, each) for subject, each in found if each.artifact_type in types]
        level = []
        fresh: dict[Digest, tuple[Descriptor, Descriptor]] = {}
        for subject, each in found:
            if each.digest not in done:
                fresh.setdefault(each.digest, (subject, each))
        if len(done) + len(fresh) > MAX_MANIFESTS:
            raise TooManyReferrers(f"{source.name}: {root.digest}: want at most {MAX_MANIFESTS} referrers, got more")
        with ThreadPoolExecutor(1 if isinstance(target, SerialTarget) else _TOGETHER, "referrers") as pool:
            copied = list(pool.map(one, fresh.values()))
        moved += sum(size for _, size in copied)
        manifests: dict[Descriptor, list[bytes]] = {}
        for (subject, each), (data, _) in zip(fresh.values(), copied, strict=True):
            manifests.setdefault(subject, []).append(data)
            done[each.digest] = each
            level.append(plain(each))
        for subject, datas in manifests.items():
            attach_manifests(target, subject, datas)
    return ReferrersReport(referrers=tuple(done.values()), copied_bytes=moved)


def manifests_of(source: Target, root: Descriptor) -> list[Descriptor]:
    """``root`` and the manifests below it: each may have referrers of its own."""
    found = [plain(root)]
    with source.fetch(root) as stream:
        document = parse_document(stream.read(), source=f"{source.name}: {root.digest}")
    if isinstance(document, Index):
        found += [plain(child) for child in document.manifests]
    return list({what.digest: what for what in found}.values())


def _bytes(source: Target, what: Descriptor, subject: Descriptor) -> bytes:
    """The very bytes of a referrer that was checked: a manifest is never written anew."""
    read_referrer(source, what, subject)
    with source.fetch(what) as stream:
        return stream.read()

"""Copy a whole image from one target to another: children first, the tag last.

``copy_plan`` decides and reads only; ``copy`` acts. Killed anywhere, the target has no
manifest whose children it lacks. The same digests stand at both ends.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from envbuilder.digest import Descriptor, Digest, DigestMismatch
from envbuilder.errors import IntegrityError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Index, parse_document
from envbuilder.store.movement import Found, Movement, Progress, on_side
from envbuilder.store.pace import MOST
from envbuilder.store.target import ForgetfulTarget, MissingChildren, SerialTarget, TaggingTarget, Target
from envbuilder.store.whole import fetch_whole

#: Blobs moved at a time at most; each registry's own pace, which begins at 4, decides how many of them run.
DEFAULT_JOBS = MOST
#: Questions (``has``) asked at a time: they are small, and a push of 60 layers starts with 60 of them.
_QUESTIONS = 16
#: Caps on a graph that someone else made (registry.md 8.2): levels of indexes, manifests, blobs.
MAX_DEPTH = 4
MAX_MANIFESTS = 1_000
MAX_BLOBS = 20_000


class GraphTooLarge(IntegrityError):
    """An image index is nested too deeply or names too much to be an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """What a copy would do; each digest stands once.

    manifests: documents that the target lacks, children first, as (descriptor, bytes).
    blobs: configs and layers that the target lacks. present: all that it has already.
    document: the root's bytes. tagged: the tag of the copy names the root there already.
    asked: whether the target has been asked for the blobs; else it is for each of them, just before it would move.
    """

    root: Descriptor
    manifests: tuple[tuple[Descriptor, bytes], ...]
    blobs: tuple[Descriptor, ...]
    present: tuple[Descriptor, ...]
    document: bytes
    tagged: bool = False
    asked: bool = True

    @property
    def size(self) -> int:
        """Bytes to move at most."""
        return sum(blob.size for blob in self.blobs) + sum(manifest.size for manifest, _ in self.manifests)


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What a copy did; manifests count as blobs. A blob that the target took from elsewhere was skipped."""

    descriptor: Descriptor
    copied: int
    copied_bytes: int
    skipped: int
    skipped_bytes: int


def copy_plan(source: Target, what: Descriptor, target: Target, *, tag: str = "", ask: bool = True) -> CopyPlan:
    """What must move so that ``target`` has ``what`` and all that it names, and ``tag`` names it there.

    The root is asked for first. Where it is, its manifests are: no target takes one without its children. Blobs
    are asked for all the same, since registries lose them under a manifest (registry.md 9: Quay, zot); if not to
    ``ask`` for blobs, by the copy, while others move.

    Raises:
        NotFound: the source lacks a manifest. GraphTooLarge: over a cap.
        DigestMismatch: a manifest is not what named it, or one digest is given two sizes.
    """
    manifests, blobs = _graph(source, what)

    def is_there(blob: Descriptor) -> bool:
        with on_side("destination", target, blob):
            return target.has(blob)

    with on_side("destination", target, what):
        tagged = bool(tag) and isinstance(target, TaggingTarget) and target.is_tagged(what, tag)
        root_there = tagged or target.has(what)
    unsure = [] if root_there else [manifest for manifest, _ in manifests if manifest.digest != what.digest]
    with ThreadPoolExecutor(_QUESTIONS, "copy-plan") as pool:
        wanted = [*(blobs if ask else ()), *unsure]
        answers = dict(zip((blob.digest for blob in wanted), pool.map(is_there, wanted), strict=True))
    here = {blob.digest for blob in blobs if answers.get(blob.digest)}
    there = [manifest for manifest, _ in manifests if answers.get(manifest.digest, root_there)]
    known = {manifest.digest for manifest in there}
    return CopyPlan(
        root=what,
        manifests=tuple(pair for pair in manifests if pair[0].digest not in known),
        blobs=tuple(blob for blob in blobs if blob.digest not in here),
        present=(*(blob for blob in blobs if blob.digest in here), *there),
        document=next(data for manifest, data in manifests if manifest.digest == what.digest),
        tagged=tagged,
        asked=ask,
    )


def copy(
    source: Target,
    what: Descriptor,
    target: Target,
    *,
    tag: str = "",
    jobs: int = DEFAULT_JOBS,
    progress: Progress | None = None,
    found: Found | None = None,
    plan: CopyPlan | None = None,
    finish: bool = True,
) -> CopyReport:
    """Let ``target`` hold ``what`` and all that it names, and ``tag`` name it there.

    An archive is finished, unless more is to come (``finish`` is False).

    ``plan`` is one that ``copy_plan`` made of the same arguments, so that a caller may show it first. Without it the
    first blobs move while others are asked for; ``found`` is told of each of those that is there.
    The first error stops the other blobs; its message says which side and which blob.

    Raises:
        whatever the targets raise, and what ``copy_plan`` raises.
    """
    plan = plan or copy_plan(source, what, target, tag=tag, ask=False)
    if plan.root.digest != what.digest:
        raise ValueError(f"copy: the plan is of {plan.root.digest}, not of {what.digest}")
    try:
        report = _act(target, plan, tag, jobs, Movement(source, target, progress, found))
    except MissingChildren:
        # What the target remembers is no longer so: ask, and send what is gone.
        if not isinstance(target, ForgetfulTarget) or not target.forget():
            raise
        plan = copy_plan(source, what, target, tag=tag)
        report = _act(target, plan, tag, jobs, Movement(source, target, progress))
    if finish and isinstance(target, SerialTarget):
        with on_side("destination", target, what):
            target.finish(what)
    return report


def _act(target: Target, plan: CopyPlan, tag: str, jobs: int, movement: Movement) -> CopyReport:
    # An archive's bytes should follow from the image alone, so its blobs go one by one.
    movement.all_of(plan.blobs, 1 if isinstance(target, SerialTarget) else jobs, ask=not plan.asked)
    for manifest, data in plan.manifests:
        if manifest.digest != plan.root.digest or not tag or not isinstance(target, TaggingTarget):
            movement.document(manifest, data)
    if tag and not plan.tagged:
        is_new = plan.root.digest in {manifest.digest for manifest, _ in plan.manifests}
        movement.tag(plan.root, plan.document, tag, is_new=is_new)
    skipped = [*plan.present, *(blob for blob in plan.blobs if blob.digest not in movement.opened)]
    return CopyReport(
        descriptor=plan.root,
        copied=len(plan.blobs) + len(plan.manifests) + len(plan.present) - len(skipped),
        copied_bytes=movement.moved,
        skipped=len(skipped),
        skipped_bytes=sum(blob.size for blob in skipped),
    )


def _graph(source: Target, root: Descriptor) -> tuple[list[tuple[Descriptor, bytes]], list[Descriptor]]:
    """All manifests, children first, with their bytes; all other blobs, in the order they are named."""
    manifests: dict[Digest, tuple[Descriptor, bytes]] = {}
    blobs: dict[Digest, Descriptor] = {}
    sizes: dict[Digest, int] = {}

    def note(what: Descriptor) -> None:
        if sizes.setdefault(what.digest, what.size) != what.size:
            raise DigestMismatch(f"copy: {root.digest}", what.digest, sizes[what.digest], None, what.size)

    def visit(what: Descriptor, depth: int) -> None:
        note(what)
        if what.digest in manifests:
            return
        if depth > MAX_DEPTH or len(manifests) >= MAX_MANIFESTS:
            raise GraphTooLarge(
                f"copy: {root.digest}: want at most {MAX_DEPTH} levels and {MAX_MANIFESTS} manifests, got more"
            )
        data = _document(source, what)
        document = parse_document(data, source=f"{source.name}: {what.digest}")
        if isinstance(document, Index):
            for child in document.manifests:
                visit(child, depth + 1)
        else:
            for blob in (document.config, *document.layers):
                note(blob)
                blobs.setdefault(blob.digest, blob)
        if len(blobs) > MAX_BLOBS:
            raise GraphTooLarge(f"copy: {root.digest}: want at most {MAX_BLOBS} blobs, got more")
        manifests[what.digest] = (what, data)

    visit(root, 1)
    return list(manifests.values()), [blob for blob in blobs.values() if blob.digest not in manifests]


def _document(source: Target, what: Descriptor) -> bytes:
    if what.media_type not in media_types.MANIFESTS | media_types.INDEXES:
        raise GraphTooLarge(f"copy: {what.digest}: want an image manifest or index, got {what.media_type[:100]!r}")
    with on_side("source", source, what):
        return fetch_whole(source, what, MAX_MANIFEST_SIZE, GraphTooLarge)

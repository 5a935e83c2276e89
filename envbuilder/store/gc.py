"""What a layout or a repository need not keep: a plan that a person sees first, then the deletion of just that.

Kept is everything that can be reached from a tag or an untagged entry of index.json: children of indexes, blobs of
manifests, a manifest's subject, and every referrer of what is kept. All else goes when it is older than the grace
age, so that a push in progress, whose manifests come last, loses nothing. Rules may give up tags besides.
"""

from __future__ import annotations

import contextlib
import fnmatch
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuilder.digest import Descriptor, Digest, InvalidDigest, InvalidJson
from envbuilder.oci.artifact import subject_of_tag
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Index, Manifest, parse_document
from envbuilder.store.files import StorageFailed, disk_errors, exclusive
from envbuilder.store.layout import LayoutTarget

#: Seconds that something unreferenced is left alone: the longest push that we expect, a day.
GRACE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepRules:
    """Which tags may go: those that match ``expire``, are none of the ``newest``, and are older than ``older_than_s``.

    expire: patterns of tags, none: no tag goes. keep: patterns of tags that stay whatever else is said.
    newest: how many of the tags that match stay, the youngest first. grace_s: seconds that all else stays.
    """

    expire: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    newest: int = 0
    older_than_s: float = 0.0
    grace_s: float = GRACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class GcPlan:
    """What a collection would do. tags: to remove first. blobs: digest and size of what is then unreferenced.

    young: unreferenced, but within the grace age. kept: objects that are reached. made_at_s: seconds since the epoch.
    """

    tags: tuple[str, ...]
    blobs: tuple[tuple[Digest, int], ...]
    young: int
    kept: int
    made_at_s: float
    rules: KeepRules

    @property
    def size(self) -> int:
        """Bytes that would be free."""
        return sum(size for _, size in self.blobs)


def expired_tags(ages_s: Mapping[str, float], rules: KeepRules) -> tuple[str, ...]:
    """The tags that ``rules`` give up, of tags with their ages in seconds; those beside an image follow that image."""
    matching = [
        tag for tag in ages_s if _any(tag, rules.expire) and not _any(tag, rules.keep) and subject_of_tag(tag) is None
    ]
    matching.sort(key=lambda tag: (ages_s[tag], tag))
    return tuple(sorted(tag for tag in matching[rules.newest :] if ages_s[tag] >= rules.older_than_s))


def plan_gc(layout: LayoutTarget, rules: KeepRules, *, now_s: float | None = None) -> GcPlan:
    """What ``layout`` need not keep under ``rules``.

    Raises:
        InvalidJson, InvalidDigest: something kept is damaged: then nothing is sure, and nothing may go.
    """
    now_s = time.time() if now_s is None else now_s
    tags = layout.tags()
    ages = {tag: now_s - _time_of(layout, what.digest) for tag, what in tags.items()}
    gone = expired_tags(ages, rules)
    kept, orphaned, documents = _reached(layout, gone)
    files = _files(layout)
    unreached = {digest: found for digest, found in files.items() if digest not in kept}
    old = {digest: size for digest, (size, at_s) in unreached.items() if now_s - at_s >= rules.grace_s}
    return GcPlan(
        tags=tuple(sorted({*gone, *orphaned})),
        # Parents first: killed anywhere, no manifest is left whose children are gone.
        blobs=tuple(sorted(old.items(), key=lambda item: (_rank(documents.get(item[0])), item))),
        young=len(unreached) - len(old),
        kept=len(kept),
        made_at_s=now_s,
        rules=rules,
    )


def collect(layout: LayoutTarget, plan: GcPlan) -> int:
    """Do what ``plan`` says, as far as it still holds; bytes that were freed.

    Tags go first: killed anywhere, every tag names something whole. Then the reach is found out anew under the lock
    that taggers take, and of the plan's blobs only those go that nothing reaches and nobody stored again since.
    """
    for tag in plan.tags:
        layout.untag(tag)
    freed = 0
    with exclusive(layout.lock_file):
        kept, _, _ = _reached(layout, ())
        for digest, size in plan.blobs:
            path = layout.directory / "blobs" / "sha256" / digest.hex
            if digest not in kept and _remove(layout, path, plan.made_at_s - plan.rules.grace_s):
                freed += size
    return freed


def _remove(layout: LayoutTarget, path: Path, untouched_since_s: float) -> bool:
    """Remove a blob that nobody asked for since then. It is moved away first, then judged: ``has`` renews its time."""
    aside = layout.directory / "envbuilder" / "incoming" / f"gc-{path.name}"
    try:
        with disk_errors(path):
            path.rename(aside)
            if aside.stat().st_mtime > untouched_since_s:
                aside.rename(path)
                return False
            aside.unlink()
    except StorageFailed as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise
    return True


def reach(
    roots: Iterable[Digest], documents: Mapping[Digest, Manifest | Index], tags: Mapping[str, Digest]
) -> set[Digest]:
    """All that ``roots`` hold on to: what they name, what names them as subject, and what their own tags name."""
    referring: dict[Digest, list[Digest]] = {}
    for digest, document in documents.items():
        if document.subject is not None:
            referring.setdefault(document.subject.digest, []).append(digest)
    for tag, digest in tags.items():
        if subject := subject_of_tag(tag):
            referring.setdefault(subject, []).append(digest)
    kept: set[Digest] = set()
    left = list(roots)
    while left:
        digest = left.pop()
        if digest in kept:
            continue
        kept.add(digest)
        left += [what.digest for what in named_by(documents.get(digest))]
        left += referring.get(digest, ())
    return kept


def named_by(document: Manifest | Index | None) -> Sequence[Descriptor]:
    """Everything that a document names: children, config, layers, subject."""
    if document is None:
        return ()
    subject = (document.subject,) if document.subject else ()
    if isinstance(document, Index):
        return (*document.manifests, *subject)
    return (document.config, *document.layers, *subject)


def _reached(
    layout: LayoutTarget, gone: Sequence[str]
) -> tuple[set[Digest], list[str], dict[Digest, Manifest | Index]]:
    """What is kept without the tags ``gone``; the tags beside images that are kept no more; all documents."""
    entries = layout.entries()
    tags = {tag: what.digest for tag, what in layout.tags().items()}
    documents = _documents(layout, {entry.digest for entry in entries})
    beside = {tag: subject for tag in tags if (subject := subject_of_tag(tag))}
    roots = [entry.digest for entry in entries if layout.tag_of(entry) not in {*gone, *beside}]
    kept = reach(roots, documents, tags)
    orphaned = [tag for tag, subject in beside.items() if subject not in kept and tags[tag] not in kept]
    return kept, orphaned, documents


def _documents(layout: LayoutTarget, must: set[Digest]) -> dict[Digest, Manifest | Index]:
    """Every manifest and index of the layout; one that index.json names has to be one."""
    found: dict[Digest, Manifest | Index] = {}
    for digest, (size, _) in _files(layout).items():
        if size > MAX_MANIFEST_SIZE:
            continue
        what = Descriptor(media_type="", digest=digest, size=size)
        with layout.fetch(what) as stream:
            first = stream.read(1)
            data = first + stream.read() if first == b"{" or digest in must else b""
        try:
            found[digest] = parse_document(data, source=f"{layout.name}: {digest}")
        except (InvalidJson, InvalidDigest):
            if digest in must:
                raise
    return found


def _rank(document: Manifest | Index | None) -> int:
    return 2 if document is None else 0 if isinstance(document, Index) else 1


def _files(layout: LayoutTarget) -> dict[Digest, tuple[int, float]]:
    """Size and time of every blob; other files in the folder are not ours to judge."""
    found = {}
    folder: Path = layout.directory / "blobs" / "sha256"
    with disk_errors(folder):
        for path in folder.iterdir():
            with contextlib.suppress(InvalidDigest, FileNotFoundError):
                digest, status = Digest(f"sha256:{path.name}"), path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found[digest] = (status.st_size, status.st_mtime)
    return found


def _time_of(layout: LayoutTarget, digest: Digest) -> float:
    with contextlib.suppress(OSError):
        return (layout.directory / "blobs" / "sha256" / digest.hex).stat().st_mtime
    return 0.0


def _any(tag: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(tag, pattern) for pattern in patterns)

"""Tags and manifests that a repository need not keep, as far as a registry tells and deletes.

Blobs are the registry's own affair: no API lists them. A manifest goes only when no tag that stays reaches it:
not as a child of an index, not as the subject of a referrer, not as a referrer itself.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from envbuilder.digest import Descriptor, Digest, InvalidJson, parse_json_object
from envbuilder.oci import media_types
from envbuilder.oci.artifact import subject_of_tag
from envbuilder.oci.manifest import MAX_MANIFEST_SIZE, Index, Manifest, parse_document
from envbuilder.registry.errors import BadAnswer
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.gc import KeepRules, expired_tags, named_by, reach
from envbuilder.store.referrers import referrers
from envbuilder.store.target import NotFound

#: Seconds after which a collection looks again at what tags reach.
_LOOK_AGAIN_S = 5.0
#: Manifests looked at; each may name others that a registry makes up as it is asked.
_MAX_DOCUMENTS = 200_000
_DOCUMENTS = media_types.MANIFESTS | media_types.INDEXES


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryGcPlan:
    """What a collection would do, in this order. tags: names that go while their manifest stays.

    manifests: with the tags that go with them; parents before children.
    """

    tags: tuple[str, ...]
    manifests: tuple[tuple[Digest, tuple[str, ...]], ...]
    kept: int


def plan_registry_gc(target: RegistryTarget, rules: KeepRules, *, now_s: float) -> RegistryGcPlan:
    """What the repository need not keep under ``rules``; an image's age is what it says of its making.

    Raises:
        InvalidJson, ...: something does not parse: then nothing is sure, and nothing may go.
    """
    tags, documents = _survey(target)
    ages = {tag: _age_s(target, documents[digest], now_s) for tag, digest in tags.items()}
    # An image that does not say when it was made is no older than now, whatever age is asked for.
    gone = set(expired_tags(ages, rules))
    beside = {tag for tag in tags if subject_of_tag(tag)}
    kept = reach([digest for tag, digest in tags.items() if tag not in gone | beside], documents, tags)
    lost = [digest for digest in _parents_first(documents, [tags[tag] for tag in sorted(gone)]) if digest not in kept]
    orphans = [tags[tag] for tag in beside if subject_of_tag(tag) in set(lost) and tags[tag] not in kept]
    doomed = dict.fromkeys([*lost, *orphans])
    return RegistryGcPlan(
        tags=tuple(sorted(tag for tag in gone if tags[tag] not in doomed)),
        manifests=tuple((each, tuple(sorted(t for t, named in tags.items() if named == each))) for each in doomed),
        kept=len(kept),
    )


def collect_registry(
    target: RegistryTarget, plan: RegistryGcPlan, *, clock: Callable[[], float] = time.monotonic
) -> int:
    """Do what ``plan`` says, as far as it still holds; how many manifests went.

    What tags reach is found out anew first and every few seconds: a manifest stays that got another tag since, or that
    an index or a referrer pushed since holds on to. Asking and deleting are two requests, and no registry has one for
    both: what is tagged in between goes too.

    Raises:
        CannotDelete: the registry does not delete; what went before it is gone.
    """
    for tag in plan.tags:
        target.delete_tag(tag)
    reached = _Reached(target, plan, clock)
    count = 0
    for digest, tags in plan.manifests:
        if reached.holds(digest) or any(_digest_of(target, tag) not in (digest, None) for tag in tags):
            continue
        try:
            target.delete_manifest(digest)
            count += 1
        except NotFound:
            continue
    return count


class _Reached:
    """What a repository holds on to now, but for the tags that ``plan`` gives up where they still name the same."""

    def __init__(self, target: RegistryTarget, plan: RegistryGcPlan, clock: Callable[[], float]) -> None:
        self._target, self._clock = target, clock
        self._given_up = {(tag, digest) for digest, tags in plan.manifests for tag in tags}
        self._known: set[str] = set()
        self._kept: set[Digest] = set()
        self._until_s = clock()

    def holds(self, digest: Digest) -> bool:
        """Whether something that stays reaches ``digest``."""
        if self._clock() >= self._until_s or not self._known.issuperset(self._target.tag_names()):
            start_s = self._clock()
            tags, documents = _survey(self._target)
            roots = [d for tag, d in tags.items() if (tag, d) not in self._given_up and not subject_of_tag(tag)]
            self._known, self._kept = set(tags), reach(roots, documents, tags)
            # Where a look takes long, most of the time is still spent deleting.
            self._until_s = self._clock() + max(_LOOK_AGAIN_S, 5 * (self._clock() - start_s))
        return digest in self._kept


def _survey(target: RegistryTarget) -> tuple[dict[str, Digest], dict[Digest, Manifest | Index]]:
    """Every tag, and every manifest that can be reached from one, referrers included."""
    tags: dict[str, Digest] = {}
    documents: dict[Digest, Manifest | Index] = {}
    left: list[Descriptor] = []
    for tag in target.tag_names():
        try:
            what = target.lookup(tag)
        except NotFound:
            continue  # deleted since it was listed
        tags[tag] = what.digest
        left.append(what)
    while left:
        if len(documents) > _MAX_DOCUMENTS:
            raise BadAnswer(f"{target.name}: want at most {_MAX_DOCUMENTS} manifests, got more")
        what = left.pop()
        if what.digest in documents or what.size > MAX_MANIFEST_SIZE:
            continue
        try:
            with target.fetch(what) as stream:
                document = parse_document(stream.read(), source=f"{target.name}: {what.digest}")
        except NotFound:
            continue  # an index may list what was never pushed
        documents[what.digest] = document
        left += [each for each in named_by(document) if each.media_type in _DOCUMENTS]
        if document.subject is None:
            left += referrers(target, what)
    return tags, documents


def _parents_first(documents: Mapping[Digest, Manifest | Index], roots: list[Digest]) -> list[Digest]:
    """The manifests below ``roots``, and the referrers of each behind it."""
    ordered: dict[Digest, None] = {}
    left = list(roots)
    while left:
        digest = left.pop(0)
        if digest in ordered or digest not in documents:
            continue
        ordered[digest] = None
        left += [each.digest for each in named_by(documents[digest]) if each.media_type in _DOCUMENTS]
        left += [other for other, one in documents.items() if one.subject and one.subject.digest == digest]
    return list(ordered)


def _age_s(target: RegistryTarget, document: Manifest | Index, now_s: float) -> float:
    text = document.annotations.get("org.opencontainers.image.created", "")
    if not text and isinstance(document, Manifest) and document.config.size <= MAX_MANIFEST_SIZE:
        try:
            with target.fetch(document.config) as stream:
                text = str(parse_json_object(stream.read(), source=target.name).get("created", ""))
        except (NotFound, InvalidJson):
            text = ""
    try:
        made = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return 0.0
    return max(0.0, now_s - made.timestamp()) if made.tzinfo else 0.0


def _digest_of(target: RegistryTarget, tag: str) -> Digest | None:
    try:
        return target.lookup(tag).digest
    except NotFound:
        return None

"""The base of others in an archive: what of it would move, from where, and that it comes back byte for byte."""

import io
from dataclasses import replace

import pytest

from envbuilder.digest import Digest, DigestMismatch, describe
from envbuilder.lock.archived_base import OtherBase, base_below
from envbuilder.lock.artifact_archive import (
    ArchivedArtifacts,
    NotAnArchive,
    NotArchived,
    open_archive,
    plan_archive,
    push_archive,
)
from envbuilder.lock.model import BaseImage, BaseLayer, ForeignSystem
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, parse_document
from envbuilder.store.copy import copy
from envbuilder.store.files import StorageFailed
from envbuilder.store.gc import KeepRules, collect, plan_gc
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.target import NotFound
from envbuilder.testing.bases import push_base, system
from envbuilder.testing.foreign import foreign_tar, gzip_layer, member
from envbuilder.testing.locks import SMALL

LAYERS = [gzip_layer(foreign_tar(each)) for each in (system(), [member("etc/x", b"x")])]


@pytest.fixture
def place():
    """Where the base is."""
    there = MemoryTarget(name="base.example/one")
    push_base(there, LAYERS)
    return there


@pytest.fixture
def lock(place):
    what = place.lookup("base")
    document = read(place, what)
    base = BaseImage(
        manifest=what.digest,
        config=document.config.digest,
        python="/usr/bin/python3.12",
        layers=tuple(
            BaseLayer(digest=each.digest, size=each.size, media_type=each.media_type, diff_id=Digest.of(blob.tar))
            for each, blob in zip(document.layers, LAYERS, strict=True)
        ),
    )
    name = ForeignSystem(name="ubuntu-24.04", interpreter="3.12.3", image=f"base.example/one@{what.digest}", base=base)
    layers = ("x/base-00", "x/base-01", "x/top")
    return replace(SMALL, suite="", base=(), debs=(), wheels=(), layers=layers, system=name)


def read(target, what):
    with target.fetch(what) as stream:
        return parse_document(stream.read(), source="test")


def nothing(_artifact):
    raise AssertionError("an artefact was asked for")


class Nothing:
    file = staticmethod(nothing)


def never():
    raise AssertionError("the base's own place was asked")


def archived(target, lock, place, **more):
    return push_archive(target, [lock], Nothing(), tag="kept", plan=plan_archive(target, [lock], lambda: place), **more)


def test_a_plan_says_all_that_a_place_without_the_base_lacks_of_it(place, lock):
    planned = plan_archive(MemoryTarget(), [lock], lambda: place)
    what = place.lookup("base")
    document = read(place, what)

    assert {blob.digest for blob in planned.base.plan.blobs} == {
        document.config.digest, *(layer.digest for layer in document.layers)
    }  # fmt: skip
    assert planned.size == what.size + document.config.size + sum(layer.size for layer in document.layers)


def test_what_is_stored_is_the_base_byte_for_byte_beside_the_artefacts(place, lock):
    target, moved = MemoryTarget(), []
    what = place.lookup("base")
    root = archived(target, lock, place, sent=moved.append)
    index = read(target, target.lookup("kept"))

    assert isinstance(index, Index)
    assert (target.lookup("kept").digest, index.artifact_type) == (root.digest, media_types.ARTIFACTS)
    assert [child.artifact_type for child in index.manifests] == [media_types.ARTIFACTS, ""]
    assert index.manifests[1] == replace(what, annotations={}, platform=None)
    assert copy(target, what, place).copied == 0
    assert sum(moved) == plan_archive(MemoryTarget(), [lock], lambda: place).size
    for blob in (what, read(place, what).config, *read(place, what).layers):
        with place.fetch(blob) as theirs, target.fetch(blob) as ours:
            assert ours.read() == theirs.read()


def test_the_second_time_the_bases_own_place_is_not_asked_and_the_archive_is_the_same(place, lock):
    target = MemoryTarget()
    first = archived(target, lock, place)

    planned = plan_archive(target, [lock], never)

    assert (planned.root.digest, planned.size, planned.base.plan.blobs) == (first.digest, 0, ())
    assert push_archive(target, [lock], Nothing(), tag="kept", plan=planned).digest == first.digest


def test_a_layer_that_the_archive_lost_is_sent_again(place, lock):
    target = MemoryTarget()
    archived(target, lock, place)
    gone = read(place, place.lookup("base")).layers[1]
    forgetful = Lacking(target, gone.digest)

    planned = plan_archive(forgetful, [lock], lambda: place)

    assert planned.base.plan.blobs == (gone,)


class Lacking:
    """A target that lost one blob."""

    def __init__(self, inner, digest):
        self._inner, self._digest = inner, digest

    def has(self, what):
        return what.digest != self._digest and self._inner.has(what)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_a_base_is_taken_from_the_archive(place, lock, tmp_path):
    target = MemoryTarget()
    archived(target, lock, place)
    archive = open_archive(target, target.lookup("kept"))
    source = ArchivedArtifacts(target, archive, tmp_path)

    assert archive.locks == (lock,)
    assert source.base(base_below([lock])) is target


def test_another_base_and_an_archive_without_one_are_told(place, lock, tmp_path):
    target = MemoryTarget()
    push_archive(
        target, [lock], Nothing(), plan=plan_archive(target, [lock], None), tag="old"
    )  # as before bases were stored
    archived(target, lock, place)
    other = replace(base_below([lock]), manifest=Digest.of(b"other"))

    for tag, base in (("old", base_below([lock])), ("kept", other)):
        source = ArchivedArtifacts(target, open_archive(target, target.lookup(tag)), tmp_path)
        with pytest.raises(NotArchived, match=f"no base {base.manifest}") as told:
            source.base(base)
        assert "Archive this lock once more" in told.value.hint


def test_a_lock_whose_layers_are_not_those_of_its_base_is_refused(place, lock):
    base = base_below([lock])
    changed = replace(lock, system=replace(lock.system, base=replace(base, layers=base.layers[:1])))

    with pytest.raises(OtherBase, match=r"base\.example/one"):
        plan_archive(MemoryTarget(), [changed], lambda: place)


def test_a_base_that_is_not_what_its_digest_says_is_not_archived(lock):
    class Lying(MemoryTarget):
        def fetch(self, what):
            return io.BytesIO(b"x" * what.size) if "tar" in what.media_type else super().fetch(what)

    lying, target = Lying(), MemoryTarget()
    push_base(lying, LAYERS)

    with pytest.raises(DigestMismatch) as told:
        archived(target, lock, lying)
    assert "copy OLD NEW" in told.value.hint

    assert not target.has(lying.lookup("base"))


def test_a_base_that_is_gone_from_its_place_is_told_with_what_else_can_be_copied(place, lock):
    def down():
        raise NotFound("gone", hint="Check the name.")

    for nowhere, hint in ((MemoryTarget, "Where another"), (down, "Check the name. Where another")):
        with pytest.raises(NotFound) as told:
            plan_archive(MemoryTarget(), [lock], nowhere)
        assert told.value.hint.startswith(hint)
        assert told.value.hint.endswith("envbuilder copy OLD NEW")


def test_an_archive_that_fails_on_its_way_has_no_name_and_goes_on_where_it_was(place, lock):
    document = read(place, place.lookup("base"))

    class Full(MemoryTarget):
        full = True

        def push(self, what, content):
            if self.full and what.digest == document.layers[1].digest:
                raise StorageFailed("no space left")
            super().push(what, content)

    target = Full()
    with pytest.raises(StorageFailed, match="destination") as told:
        archived(target, lock, place)
    assert "copy OLD NEW" not in told.value.hint  # the place of the base is not at fault
    with pytest.raises(NotFound):
        target.lookup("kept")
    assert not target.has(place.lookup("base"))
    target.full = False

    assert document.layers[1] in plan_archive(target, [lock], lambda: place).base.plan.blobs
    archived(target, lock, place)
    assert plan_archive(target, [lock], never).size == 0


def test_an_index_of_two_archives_or_of_none_is_no_archive(place, lock):
    target = MemoryTarget()
    archived(target, lock, place)
    index = read(target, target.lookup("kept"))
    for children in ((*index.manifests, index.manifests[0]), index.manifests[1:]):
        data = replace(index, manifests=children).dump()
        what = push(target, data)
        with pytest.raises(NotAnArchive, match="the artefacts of one lock"):
            open_archive(target, what)


def push(target, data):
    what = describe(data, media_types.OCI_INDEX)
    target.push(what, lambda: io.BytesIO(data))
    return what


def test_a_collection_keeps_the_base_as_long_as_the_archive(place, lock, tmp_path):
    layout = LayoutTarget(tmp_path / "kept", create=True)
    archived(layout, lock, place)
    everything = len(list((layout.directory / "blobs/sha256").iterdir()))
    now = KeepRules(grace_s=-1.0)

    assert collect(layout, plan_gc(layout, now)) == 0
    layout.untag("kept")
    assert len(plan_gc(layout, now).blobs) == everything

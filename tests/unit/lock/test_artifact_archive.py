"""Artefacts of a lock as one OCI artifact: written once, read back under the lock's own digests."""

import io
from dataclasses import replace

import pytest

from envbuilder.digest import DigestMismatch, describe
from envbuilder.lock.artifact_archive import (
    ArchivedArtifacts,
    NotAnArchive,
    NotArchived,
    archive_manifest,
    open_archive,
    plan_archive,
    push_archive,
)
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest, parse_document
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.artifacts import locked_wheel, make_wheel
from envbuilder.testing.locks import SMALL, wheel

DATA = {name: make_wheel(name) for name in ("one", "two")}
LOCK = replace(
    SMALL, wheels=tuple(locked_wheel(name, data, layer="x/wheels-00") for name, data in DATA.items()), debs=()
)


class Folder:
    """An ArtifactSource of files; counts what it is asked for."""

    def __init__(self, folder, data=None):
        self.folder, self.asked = folder, []
        self.data = data or {each.digest: DATA[each.name] for each in LOCK.wheels}

    def file(self, artifact):
        self.asked.append(artifact.name)
        path = self.folder / artifact.digest.hex
        path.write_bytes(self.data[artifact.digest])
        return path


@pytest.fixture
def target():
    return MemoryTarget()


def archived(target, locks, artifacts):
    return push_archive(target, locks, artifacts, plan=plan_archive(target, locks, None), tag="kept")


def test_what_was_archived_comes_back(tmp_path, target):
    what = archived(target, [LOCK], Folder(tmp_path))
    archive = open_archive(target, target.lookup("kept"))
    source = ArchivedArtifacts(target, archive, tmp_path / "cache")

    assert archive.what.digest == what.digest
    assert archive.locks == (LOCK,)
    assert [source.file(each).read_bytes() for each in LOCK.wheels] == list(DATA.values())
    assert source.file(LOCK.wheels[0]).stat().st_mode & 0o777 == 0o444


def test_the_second_time_nothing_is_fetched_or_sent(tmp_path, target):
    archived(target, [LOCK], Folder(tmp_path))
    again = Folder(tmp_path)

    archived(target, [LOCK], again)

    assert again.asked == []


def test_only_what_is_missing_moves(tmp_path, target):
    archived(target, [replace(LOCK, wheels=LOCK.wheels[:1])], Folder(tmp_path))
    again = Folder(tmp_path)

    archived(target, [LOCK], again)

    assert again.asked == ["two"]


def test_an_artefact_that_changed_on_the_disk_is_not_archived(tmp_path, target):
    changed = Folder(tmp_path, {each.digest: b"other" for each in LOCK.wheels})

    with pytest.raises(DigestMismatch):
        archived(target, [LOCK], changed)

    assert not target.has(archive_manifest([LOCK])[0])


def test_an_artefact_of_another_lock_is_named(tmp_path, target):
    archived(target, [LOCK], Folder(tmp_path))
    source = ArchivedArtifacts(target, open_archive(target, target.lookup("kept")), tmp_path / "cache")

    with pytest.raises(NotArchived, match="three 3"):
        source.file(wheel("three", "3"))


def test_an_artefact_of_another_size_than_locked_is_not_begun_to_be_written(target, tmp_path):
    archive = open_archive(target, archived(target, [LOCK], Folder(tmp_path)))
    one = LOCK.wheels[0]
    huge = replace(archive, blobs={one.digest: replace(archive.blobs[one.digest], size=1 << 60)})

    with pytest.raises(NotArchived, match=one.name):
        ArchivedArtifacts(target, huge, tmp_path / "cache").file(one)

    assert not (tmp_path / "cache").exists()


def push(target, manifest):
    data = manifest.dump()
    what = describe(data, media_types.OCI_MANIFEST)
    target.push(what, lambda: io.BytesIO(data))
    return what


def test_an_image_is_no_archive(target):
    with pytest.raises(NotAnArchive, match="another kind"):
        open_archive(target, push(target, Manifest(config=describe(b"{}"), layers=())))


def test_an_archive_whose_lock_names_more_than_it_has_is_refused(tmp_path, target):
    archived(target, [LOCK], Folder(tmp_path))
    whole = parse_document(archive_manifest([LOCK])[1], source="x")
    cut = replace(whole, layers=tuple(part for part in whole.layers if part.digest != LOCK.wheels[1].digest))

    with pytest.raises(NotAnArchive, match=r"two 1\.0"):
        open_archive(target, push(target, cut))

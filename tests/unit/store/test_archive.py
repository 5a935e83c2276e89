import io
import os
import tarfile
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.errors import HostError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.store.archive import ArchiveTarget, ArchiveWriter, ReadOnlyTarget
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget, NotALayout
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.tarscan import BadArchive

LAYER = bytes(range(256)) * 20


@pytest.fixture
def image():
    source = MemoryTarget()
    layers = []
    for data in (LAYER, b"two", b"", b"{}"):
        what = describe(data, media_types.OCI_LAYER_TAR)
        source.push(what, partial(io.BytesIO, data))
        layers.append(what)
    manifest = Manifest(config=describe(b"{}", media_types.OCI_CONFIG), layers=tuple(layers[:3])).dump()
    root = describe(manifest, media_types.OCI_MANIFEST)
    source.push(root, partial(io.BytesIO, manifest))
    return source, root


def archive_of(image, file, tag="v1"):
    copy(*image, ArchiveWriter(file), tag=tag)
    return file


def test_an_archive_comes_back_as_it_was_copied(image, tmp_path):
    root = image[1]
    archive = ArchiveTarget(archive_of(image, tmp_path / "image.tar"))
    back = MemoryTarget()

    copy(archive, archive.lookup("v1"), back, tag="v1")

    assert back.lookup("v1") == root == archive.lookup("") == archive.lookup(str(root.digest))
    assert archive.fetch_range(describe(LAYER), 1000, 2000) == LAYER[1000:3000]


def test_an_archive_without_a_tag_names_its_only_image(image, tmp_path):
    assert ArchiveTarget(archive_of(image, tmp_path / "image.tar", tag="")).lookup("") == image[1]


def test_the_same_image_gives_the_same_archive(image, tmp_path):
    one, two = (archive_of(image, tmp_path / name).read_bytes() for name in ("one.tar", "two.tar"))

    assert one == two


def test_tar_lists_what_a_layout_has(image, tmp_path):
    with tarfile.open(archive_of(image, tmp_path / "image.tar")) as tar:
        names = tar.getnames()

    assert names[-2:] == ["oci-layout", "index.json"]
    assert len(names) == 2 + 5
    assert all(name.startswith("blobs/sha256/") for name in names[:-2])


def test_a_tar_of_a_layout_made_by_tar_is_read(image, tmp_path):
    layout = LayoutTarget(tmp_path / "layout", create=True)
    copy(*image, layout, tag="v1")
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        with tarfile.open(tmp_path / "image.tar", "w", format=kind) as tar:
            tar.add(tmp_path / "layout", arcname=".")

        archive = ArchiveTarget(tmp_path / "image.tar")
        assert archive.lookup("v1") == image[1]
        assert archive.has(describe(LAYER))


def test_an_archive_appears_only_when_it_is_finished(image, tmp_path):
    seen = []

    copy(*image, ArchiveWriter(tmp_path / "image.tar"), progress=lambda *_: seen.extend(tmp_path.iterdir()))
    assert seen == []

    assert [path.name for path in tmp_path.iterdir()] == ["image.tar"]


def test_an_archive_replaces_an_older_one_at_once(image, tmp_path):
    (tmp_path / "image.tar").write_bytes(b"old")

    archive_of(image, tmp_path / "image.tar")

    assert [path.name for path in tmp_path.iterdir()] == ["image.tar"]
    assert ArchiveTarget(tmp_path / "image.tar").lookup("") == image[1]


def test_an_archive_is_written_without_o_tmpfile_too(image, tmp_path, monkeypatch):
    real = os.open

    def without(path, flags, mode=0o777, **options):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported")
        return real(path, flags, mode, **options)

    monkeypatch.setattr(os, "open", without)
    abandoned = ArchiveWriter(tmp_path / "other.tar")
    del abandoned
    archive_of(image, tmp_path / "image.tar")

    assert [path.name for path in tmp_path.iterdir()] == ["image.tar"]


def test_a_directory_that_is_not_there_is_an_error_of_the_host(tmp_path):
    with pytest.raises(HostError, match="none"):
        ArchiveWriter(tmp_path / "none" / "image.tar")


def test_an_archive_that_is_read_is_not_written(image, tmp_path):
    archive = ArchiveTarget(archive_of(image, tmp_path / "image.tar"))

    with pytest.raises(ReadOnlyTarget):
        archive.push(describe(b"x"), partial(io.BytesIO, b"x"))
    with pytest.raises(ReadOnlyTarget):
        archive.tag(image[1], "v2")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "want a tar"),
        (b"hello" * 1000, "no tar header at byte 0"),
        (b"\x1f\x8b" + bytes(1000), "got a gzip file"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 1000, "got a zstd file"),
    ],
)
def test_what_is_no_tar_is_said(tmp_path, data, words):
    (tmp_path / "image.tar").write_bytes(data)

    with pytest.raises(BadArchive, match=words):
        ArchiveTarget(tmp_path / "image.tar")


def test_a_missing_archive_is_said(tmp_path):
    with pytest.raises(NotALayout, match="no such file"):
        ArchiveTarget(tmp_path / "image.tar")


def tar_of(file, *members):
    with tarfile.open(file, "w") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file


def test_a_tar_without_a_layout_is_said(tmp_path):
    tar_of(tmp_path / "image.tar", (tarfile.TarInfo("manifest.json"), b"[]"))

    with pytest.raises(NotALayout, match="oci-layout"):
        ArchiveTarget(tmp_path / "image.tar")


def test_a_truncated_archive_is_refused_at_once(image, tmp_path):
    file = archive_of(image, tmp_path / "image.tar")
    file.write_bytes(file.read_bytes()[:3000])

    with pytest.raises(BadArchive, match="cut off"):
        ArchiveTarget(file)


def test_links_and_odd_names_are_not_followed(tmp_path):
    digest = describe(b"x").digest.hex
    link = tarfile.TarInfo(f"blobs/sha256/{digest}")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    climbing = tarfile.TarInfo(f"../blobs/sha256/{digest}")
    file = tar_of(
        tmp_path / "image.tar",
        (tarfile.TarInfo("oci-layout"), b'{"imageLayoutVersion":"1.0.0"}'),
        (tarfile.TarInfo("index.json"), b'{"manifests":[]}'),
        (link, b""),
        (climbing, b"x"),
    )

    assert not ArchiveTarget(file).has(describe(b"x"))


def test_a_giant_header_extension_is_refused_unread(tmp_path):
    member = tarfile.TarInfo("x")
    member.type = tarfile.XHDTYPE
    file = tar_of(tmp_path / "image.tar", (member, bytes(2 << 20)))

    with pytest.raises(BadArchive, match="at most 1048576 bytes"):
        ArchiveTarget(file)


@pytest.mark.parametrize("data", [b"5 x=1\n", b"99 path=x\n", b"x", b"12 size=-10\n"])
def test_a_malformed_pax_record_is_refused(tmp_path, data):
    member = tarfile.TarInfo("x")
    member.type = tarfile.XHDTYPE
    file = tar_of(tmp_path / "image.tar", (member, data + bytes(0)))

    with pytest.raises((BadArchive, NotALayout)):
        ArchiveTarget(file)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["FIFO", "folder"])
def test_what_is_no_file_is_no_archive(tmp_path, make):
    make(tmp_path / "odd")

    with pytest.raises(NotALayout, match="no file"):
        ArchiveTarget(tmp_path / "odd")

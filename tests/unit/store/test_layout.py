import errno
import fcntl
import io
import json
import multiprocessing
import os
from functools import partial

import pytest

from envbuilder.digest import DigestMismatch, describe
from envbuilder.errors import HostError
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.store import files
from envbuilder.store.files import DiskFull, NotWritable, PendingFile, disk_errors
from envbuilder.store.layout import LayoutTarget, NotALayout
from envbuilder.store.target import NotFound

MANIFEST = Manifest(config=describe(b"{}", media_types.OCI_CONFIG), layers=()).dump()
ROOT = describe(MANIFEST, media_types.OCI_MANIFEST)


def push(target, data, media_type="application/octet-stream"):
    what = describe(data, media_type)
    target.push(what, partial(io.BytesIO, data))
    return what


@pytest.fixture
def layout(tmp_path):
    return LayoutTarget(tmp_path / "store", create=True)


def test_a_new_layout_has_the_three_parts_of_the_specification(tmp_path):
    LayoutTarget(tmp_path / "a" / "b", create=True)

    assert (tmp_path / "a/b/oci-layout").read_bytes() == b'{"imageLayoutVersion":"1.0.0"}'
    assert json.loads((tmp_path / "a/b/index.json").read_bytes())["manifests"] == []
    assert (tmp_path / "a/b/blobs/sha256").is_dir()


def test_a_missing_layout_is_not_made_unless_asked(tmp_path):
    with pytest.raises(NotALayout, match="want an OCI image layout"):
        LayoutTarget(tmp_path / "none")

    assert not (tmp_path / "none").exists()


def test_a_directory_of_other_things_is_not_made_a_layout(tmp_path):
    (tmp_path / "thesis.tex").touch()

    with pytest.raises(NotALayout, match=r"thesis\.tex"):
        LayoutTarget(tmp_path, create=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_creation_that_was_killed_is_completed(tmp_path):
    LayoutTarget(tmp_path, create=True)
    (tmp_path / "oci-layout").unlink()

    LayoutTarget(tmp_path, create=True)

    assert (tmp_path / "oci-layout").exists()


def test_creating_again_keeps_content_and_tags(layout):
    push(layout, MANIFEST)
    layout.tag(ROOT, "v1")

    again = LayoutTarget(layout.directory, create=True)

    assert again.lookup("v1") == ROOT


def test_another_layout_version_is_refused(tmp_path):
    (tmp_path / "oci-layout").write_text('{"imageLayoutVersion":"2.0.0"}')

    with pytest.raises(NotALayout, match=r"want imageLayoutVersion 1\.0\.0, got '2\.0\.0'"):
        LayoutTarget(tmp_path)


def test_tags_are_where_other_tools_look_for_them(layout):
    push(layout, MANIFEST)
    layout.tag(ROOT, "v1")

    [entry] = json.loads((layout.directory / "index.json").read_bytes())["manifests"]
    assert entry["digest"] == str(ROOT.digest)
    assert entry["annotations"] == {"org.opencontainers.image.ref.name": "v1"}
    assert layout.tags() == {"v1": ROOT}


def test_untag_removes_only_that_tag(layout):
    push(layout, MANIFEST)
    layout.tag(ROOT, "v1")
    layout.tag(ROOT, "v2")

    layout.untag("v1")
    layout.untag("never")

    assert set(layout.tags()) == {"v2"}
    assert layout.has(ROOT)


def test_no_tag_names_the_only_image(layout):
    with pytest.raises(NotFound, match="got tags: none"):
        layout.lookup("")
    push(layout, MANIFEST)
    layout.tag(ROOT, "v1")
    layout.tag(ROOT, "v2")

    assert layout.lookup("") == ROOT

    other = Manifest(config=describe(b"{}", media_types.OCI_CONFIG), layers=(), annotations={"a": "b"}).dump()
    push(layout, other)
    layout.tag(describe(other, media_types.OCI_MANIFEST), "v2")
    with pytest.raises(NotFound, match="v1, v2"):
        layout.lookup("")


def test_a_manifest_without_a_tag_is_found_by_its_digest(layout):
    push(layout, MANIFEST)

    assert layout.lookup(str(ROOT.digest)) == ROOT


def test_a_file_of_a_blob_is_given_only_when_it_is_whole(layout):
    what = push(layout, b"data")

    assert layout.file_of(what).read_bytes() == b"data"

    layout.file_of(what).write_bytes(b"dat")
    with pytest.raises(NotFound):
        layout.file_of(what)


def test_a_truncated_blob_is_replaced_by_the_next_push(layout):
    what = push(layout, b"data")
    layout.file_of(what).write_bytes(b"d")

    push(layout, b"data")

    assert layout.file_of(what).read_bytes() == b"data"


def test_a_damaged_blob_is_never_handed_out(layout):
    what = push(layout, b"data")
    layout.file_of(what).write_bytes(b"DATA")

    with layout.fetch(what) as stream, pytest.raises(DigestMismatch):
        stream.read()


def test_a_fifo_in_the_place_of_a_blob_does_not_hang(layout):
    what = describe(b"data")
    os.mkfifo(layout.directory / "blobs/sha256" / what.digest.hex)

    with pytest.raises(NotFound, match="not a file"):
        layout.fetch(what)


def test_a_writer_learns_the_digest_while_it_writes(layout):
    with layout.begin() as writer:
        writer.write(b"da")
        writer.write(memoryview(b"ta"))
        what = describe(b"data")
        assert (writer.digest, writer.size) == (what.digest, 4)
        assert not layout.has(what)
        writer.commit(what)

    assert layout.file_of(what).read_bytes() == b"data"
    assert list((layout.directory / "envbuilder/incoming").iterdir()) == []


def test_a_writer_refuses_to_commit_other_content(layout):
    writer = layout.begin()
    writer.write(b"data")

    with pytest.raises(DigestMismatch):
        writer.commit(describe(b"other"))
    assert list((layout.directory / "envbuilder/incoming").iterdir()) == []


def test_an_aborted_writer_leaves_nothing(layout):
    with layout.begin() as writer:
        writer.write(b"data")

    assert list((layout.directory / "envbuilder/incoming").iterdir()) == []
    assert list((layout.directory / "blobs/sha256").iterdir()) == []


def test_opening_removes_leftovers_of_the_dead_and_not_of_the_living(layout):
    incoming = layout.directory / "envbuilder/incoming"
    incoming.mkdir(exist_ok=True)
    (incoming / "dead").write_bytes(b"half")
    with layout.begin() as writer:
        writer.write(b"da")

        LayoutTarget(layout.directory)

        assert len(list(incoming.iterdir())) == 1
        writer.write(b"ta")
        writer.commit(describe(b"data"))
    assert layout.has(describe(b"data"))


def test_a_file_that_a_cleaner_took_too_early_is_made_again(tmp_path, monkeypatch):
    real, taken = fcntl.flock, []

    def flock(fd, operation):
        if not taken:
            [victim] = tmp_path.iterdir()
            victim.unlink()
            taken.append(victim)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with PendingFile(tmp_path) as pending:
        pending.write(b"x")
        pending.publish(tmp_path / "x")

    assert (tmp_path / "x").read_bytes() == b"x"


def _tag_many(directory, start, names):
    target = LayoutTarget(directory)
    start.wait()
    for name in names:
        target.tag(ROOT, name)


@pytest.mark.slow
def test_processes_that_tag_at_once_lose_no_tag(layout):
    push(layout, MANIFEST)
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    names = [[f"p{process}-{index}" for index in range(20)] for process in range(3)]
    processes = [context.Process(target=_tag_many, args=(layout.directory, start, part)) for part in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)

    assert set(layout.tags()) == {name for part in names for name in part}


@pytest.mark.parametrize(
    ("number", "error", "hint"),
    [
        (28, DiskFull, "Free space"),
        (122, DiskFull, "Free space"),
        (30, NotWritable, "writable"),
        (5, HostError, "state"),
    ],
)
def test_errors_of_the_disk_say_what_to_do(tmp_path, number, error, hint):
    with pytest.raises(error) as caught, disk_errors(tmp_path):
        raise OSError(number, os.strerror(number))

    assert os.strerror(number) in str(caught.value)
    assert hint in caught.value.hint


def test_a_full_disk_is_an_error_of_the_host_and_leaves_nothing(layout, monkeypatch):
    writer = layout.begin()

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with writer, pytest.raises(DiskFull, match="No space left"):
        writer.write(b"data")
    assert list((layout.directory / "envbuilder/incoming").iterdir()) == []


def _large():
    return bytes(range(256)) * (8 << 10) + b"the rest"


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EOPNOTSUPP, "a file system without it"), NotImplementedError("a C library without it")],
    ids=["file system", "C library"],
)
def test_a_large_blob_is_whole_where_the_page_cache_cannot_be_passed(layout, monkeypatch, error):
    def refuse(*_):
        raise error

    monkeypatch.setattr("os.pwritev", refuse)
    what = describe(_large())
    layout.push(what, lambda: io.BytesIO(_large()))
    with layout.fetch(what) as stream:
        assert len(stream.read()) == what.size


def test_a_large_blob_is_whole_when_a_write_takes_a_part(layout, monkeypatch):
    data = _large()
    real = os.pwritev
    monkeypatch.setattr("os.pwritev", lambda fd, parts, *more: real(fd, [parts[0][:100_003]], *more))
    layout.push(describe(data), lambda: io.BytesIO(data))
    with layout.fetch(describe(data)) as stream:
        assert stream.read() == data


def test_a_disk_that_fills_up_under_a_large_blob_is_an_error_of_the_host(layout, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.pwritev", full)
    with pytest.raises(DiskFull):
        layout.push(describe(_large()), lambda: io.BytesIO(_large()))
    assert not list((layout.directory / "envbuilder" / "incoming").iterdir())


def places_of(path):
    """Bytes that the file system keeps for a file."""
    return path.stat().st_blocks * 512


def test_a_large_blob_has_its_place_on_the_disk_before_its_bytes_come(layout, monkeypatch):
    """Some of it: a size is only what somebody said."""
    monkeypatch.setattr(files, "_PLACE", 1 << 20)
    data, seen = _large(), []

    class Watched(io.BytesIO):
        def read(self, size=-1, /):
            seen.extend((places_of(file), self.tell()) for file in (layout.directory / "envbuilder/incoming").iterdir())
            return super().read(min(size, 300_000))

        def readinto(self, room, /):
            data = self.read(len(room))
            room[: len(data)] = data
            return len(data)

    layout.push(describe(data), lambda: Watched(data))
    with layout.fetch(describe(data)) as stream:
        assert stream.read() == data
    assert any(kept > read for kept, read in seen)
    assert max(kept - read for kept, read in seen) <= (1 << 20) + 4096
    assert places_of(layout.file_of(describe(data))) <= len(data) + 4096


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENODEV])
def test_a_large_blob_is_whole_where_no_place_can_be_taken(layout, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.posix_fallocate", refuse)
    layout.push(describe(_large()), lambda: io.BytesIO(_large()))
    with layout.fetch(describe(_large())) as stream:
        assert stream.read() == _large()


def test_no_place_is_taken_where_the_c_library_would_write_it_full(layout, monkeypatch):
    """What glibc does on a file system that cannot allocate: a byte into each block."""
    asked = []

    def write_into_each_block(fd, offset, size):
        asked.append(size)
        for at in range(offset, offset + size, 4096):
            os.pwrite(fd, b"\0", at)

    monkeypatch.setattr("os.posix_fallocate", write_into_each_block)
    layout.push(describe(_large()), lambda: io.BytesIO(_large()))
    with layout.fetch(describe(_large())) as stream:
        assert stream.read() == _large()
    assert asked == [1]


def test_a_disk_without_a_place_for_a_large_blob_is_an_error_of_the_host(layout, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(DiskFull):
        layout.push(describe(_large()), lambda: io.BytesIO(_large()))
    assert not list((layout.directory / "envbuilder" / "incoming").iterdir())


def test_what_a_writer_left_is_cleared_away_once_nobody_holds_it(layout):
    left = layout.directory / "envbuilder/incoming/left"
    left.write_bytes(b"half")
    with left.open("rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        assert not layout.clear_away()
        assert left.exists()

    assert layout.clear_away()
    assert not left.exists()

import io
import sys
import threading
import zipfile
from functools import partial

import pytest

from envbuilder.layer.zip import Archive
from envbuilder.testing.artifacts import store_file

TEXT = b"".join(b"line %d of a text that deflates well\n" % number for number in range(60_000))


@pytest.fixture
def archive(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as made:
        made.mkdir("folder") if hasattr(made, "mkdir") else made.writestr("folder/", b"")
        made.writestr("folder/large.txt", TEXT)
        made.writestr("stored.bin", bytes(range(256)) * 20_000, zipfile.ZIP_STORED)
        made.writestr("empty", b"")
        made.writestr("é/ü.txt", b"x")
        made.writestr("run", b"#!", zipfile.ZIP_DEFLATED)
        made.infolist()[-1].external_attr = 0o100755 << 16
    return Archive(store_file(tmp_path, out.getvalue()), source="x.whl")


def test_files_are_members_and_directories_are_not(archive):
    assert set(archive.members) == {"folder/large.txt", "stored.bin", "empty", "é/ü.txt", "run"}
    assert [name for name, member in archive.members.items() if member.is_executable] == ["run"]


@pytest.mark.parametrize("size", [-1, 1 << 20, 100_003])
def test_streams_give_the_same_bytes_as_reading_at_once(archive, size):
    for member in archive.members.values():
        with archive.open(member) as stream:
            streamed = b"".join(iter(lambda stream=stream: stream.read(size), b""))

        assert streamed == archive.read(member)
    assert archive.read(archive.members["folder/large.txt"]) == TEXT


def test_a_stream_fills_buffers_too(archive):
    buffered = io.BufferedReader(archive.open(archive.members["folder/large.txt"]))

    assert buffered.read(10) == TEXT[:10]
    assert buffered.read() == TEXT[10:]


def test_threads_read_one_archive_at_once(archive):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(archive.read(archive.members["folder/large.txt"])))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == [TEXT] * 4


def test_a_stream_outlives_its_archive(archive, tmp_path):
    path = next(tmp_path.iterdir())
    stream = (opened := Archive(path, source="x")).open(opened.members["folder/large.txt"])
    del opened

    assert stream.read() == TEXT


def test_an_archive_behind_other_bytes_is_read_as_zipfile_does(tmp_path):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as made:
        made.writestr("a", b"x")
    archive = Archive(store_file(tmp_path, b"#!/bin/sh\n" + out.getvalue()), source="x")

    assert archive.read(archive.members["a"]) == b"x"


def test_both_inflaters_give_the_same_bytes(archive, tmp_path, monkeypatch):
    pytest.importorskip("isal", reason="isal is not installed")
    monkeypatch.setitem(sys.modules, "isal.igzip_lib", None)  # as where it is not installed
    slow = Archive(next(tmp_path.iterdir()), source="x")

    assert slow.decoder().__class__ is not archive.decoder().__class__
    for name, member in slow.members.items():
        assert slow.read(member) == archive.read(archive.members[name])
        stream = slow.open(member)
        assert b"".join(iter(partial(stream.read, 100_003), b"")) == slow.read(member)

"""The exact bytes of a small image: a changed digest shows which file, record or chunk changed it.

When a golden file changes, TAR_WRITER, EROFS_WRITER or COMPRESSOR must change too: layers that were
locked and cached under the old rules must not be taken for new ones.
"""

import hashlib
import io
import os
import stat
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.image.assemble import assemble
from envbuilder.layer import tree
from envbuilder.layer.chunks import index_range
from envbuilder.layer.erofs import EROFS_WRITER
from envbuilder.layer.frames import CHUNK_SIZE, COMPRESSOR, LEVEL
from envbuilder.layer.metadata import erofs_metadata
from envbuilder.layer.tar import TAR_WRITER
from envbuilder.layer.tree import Entry, directory, file, symlink
from envbuilder.oci.platform import Platform
from envbuilder.testing.layers import layer_of

HERE = Path(__file__).parent

BASE = [
    directory("etc", 0o755),
    file("etc/motd", b"hello\n"),
    file("usr/bin/tool", b"#!/bin/sh\n" * 1000, 0o4755),
    symlink("bin", "usr/bin"),
    Entry(path="usr/bin/alias", mode=tree.FILE | 0o644, link="usr/bin/tool"),
    Entry(path="dev/null", mode=stat.S_IFCHR | 0o666, device=(1, 3)),
    Entry(path="run/pipe", mode=stat.S_IFIFO | 0o600, uid=1000, gid=1000),
    replace(file("srv/marked", b"x"), xattrs=(("security.capability", b"\1\0\0\2"), ("user.note", b"a"))),
    directory("tmp", 0o1777),
]
TOP = [
    file("etc/motd", b"later\n"),
    file("srv/" + "long-" * 40, b"pax path"),
    file("srv/naïve", b""),
    file("srv/large", bytes(range(256)) * 4800),
]


def expect(name, text):
    """Compare with the golden file, or write it where ENVBUILDER_GOLDEN says so."""
    golden = HERE / name
    if os.environ.get("ENVBUILDER_GOLDEN") == "write":
        golden.write_text(text)

    assert text == golden.read_text()


def listing(tar_bytes):
    """One line for each entry, and the digest of the whole."""
    with tarfile.open(fileobj=io.BytesIO(tar_bytes)) as tar:
        for info in tar:
            data = tar.extractfile(info).read() if info.isreg() else b""
            hashed = hashlib.sha256(data).hexdigest()[:16]
            link = f" -> {info.linkname}" if info.linkname else ""
            kind = info.type.decode()
            yield f"{kind} {info.mode:04o} {info.uid}:{info.gid} {info.offset_data:>7} {info.size:>7} {hashed} {info.name[:60]}{link}\n"
    yield f"{len(tar_bytes)} bytes {Digest.of(tar_bytes)}\n"


def chunks(built):
    index_start, end = index_range(built.layer.blob, source="golden")
    yield f"{built.layer.blob.size} bytes {built.layer.blob.digest}\n"
    yield f"index {index_start}:{end} {built.blob[index_start:end].hex()}\n"


@pytest.mark.parametrize(("name", "entries"), [("base", BASE), ("top", TOP)])
def test_the_bytes_of_a_tar(name, entries):
    expect(f"{name}.tar.txt", f"{TAR_WRITER}\n" + "".join(listing(layer_of(entries).tar)))


@pytest.mark.parametrize(("name", "entries"), [("base", BASE), ("top", TOP)])
def test_the_bytes_of_a_blob(name, entries):
    if "1.5.7" not in COMPRESSOR:
        pytest.skip(f"golden blobs are of zstd 1.5.7, this is {COMPRESSOR}")
    expect(f"{name}.blob.txt", f"{COMPRESSOR}\n" + "".join(chunks(layer_of(entries))))


def test_the_bytes_of_an_image():
    if "1.5.7" not in COMPRESSOR:
        pytest.skip(f"golden blobs are of zstd 1.5.7, this is {COMPRESSOR}")
    layers = [layer_of(BASE, name="golden/base").layer, layer_of(TOP, name="golden/top").layer]
    metadata = erofs_metadata(layers)
    image = assemble(
        platform=Platform("x86_64"),
        layers=layers,
        env={"PATH": "/usr/bin"},
        command=("tool",),
        lock_digest=Digest.of(b"lock"),
        spec_digest=Digest.of(b"spec"),
    )
    lines = [f"{EROFS_WRITER}: {len(metadata)} bytes {Digest.of(metadata)}\n"]
    lines += [f"{what.media_type} {what.size} {what.digest}\n" for what in image.blobs]

    expect("image.txt", "".join(lines))


def test_the_format_page_names_the_rules_in_force():
    page = (HERE.parents[1] / "docs/formats/layer.md").read_text()
    compressor = " ".join(f"zstd/1.5.7 level={LEVEL} chunk={CHUNK_SIZE}".split())

    assert f"`{TAR_WRITER}`" in page
    assert compressor in " ".join(page.split())
    assert compressor.partition(" ")[2] == COMPRESSOR.partition(" ")[2]

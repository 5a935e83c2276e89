"""What is left of a store when its writer is killed, or its disk is full or read-only: real kills, real disks."""

import io
import random
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest, parse_document
from envbuilder.store.archive import ArchiveWriter
from envbuilder.store.copy import copy
from envbuilder.store.files import DiskFull, NotWritable
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget

pytestmark = pytest.mark.slow

COPY = """
import sys
from pathlib import Path
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget

source, target = LayoutTarget(Path(sys.argv[1])), LayoutTarget(Path(sys.argv[2]), create=True)
print("ready", flush=True)
copy(source, source.lookup("v1"), target, tag="v1")
"""


def fill(target, size=100_000):
    layers = []
    for number in range(12):
        data = random.Random(number).randbytes(size)
        layers.append(describe(data, media_types.OCI_LAYER_TAR))
        target.push(layers[-1], partial(io.BytesIO, data))
    target.push(describe(b"{}"), partial(io.BytesIO, b"{}"))
    data = Manifest(config=describe(b"{}", media_types.OCI_CONFIG), layers=tuple(layers)).dump()
    root = describe(data, media_types.OCI_MANIFEST)
    target.push(root, partial(io.BytesIO, data))
    target.tag(root, "v1")
    return root


def check_whole(layout):
    """Every blob is what its name says, and every manifest has its children."""
    for path in (layout.directory / "blobs/sha256").iterdir():
        data = path.read_bytes()
        assert describe(data).digest.hex == path.name
        if data.startswith(b'{"config"'):
            document = parse_document(data, source=path.name)
            assert all(layout.has(child) for child in (document.config, *document.layers))
    assert all(layout.has(what) for what in layout.tags().values())


def test_a_copy_killed_anywhere_leaves_a_whole_store_that_a_second_copy_completes(tmp_path):
    source = LayoutTarget(tmp_path / "source", create=True)
    root = fill(source)
    target = tmp_path / "target"
    interrupted = 0
    for moment in range(12):
        process = subprocess.Popen([sys.executable, "-c", COPY, source.directory, target], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(moment * 0.004)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        layout = LayoutTarget(target)
        check_whole(layout)
        assert list((target / "envbuilder/incoming").iterdir()) == []
        interrupted += process.returncode == -signal.SIGKILL and not layout.tags()
        if layout.tags():
            for path in (target / "blobs/sha256").iterdir():
                path.unlink()
            layout.untag("v1")

    assert interrupted > 0
    copy(source, root, LayoutTarget(target, create=True), tag="v1")
    check_whole(LayoutTarget(target))
    assert LayoutTarget(target).lookup("v1") == root


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "none", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs needs root")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_full_disk_is_said_and_leaves_a_whole_store_without_the_image(small_disk):
    source = MemoryTarget()
    root = fill(source)
    layout = LayoutTarget(small_disk / "store", create=True)

    with pytest.raises(DiskFull, match=r"destination oci:.*No space left") as caught:
        copy(source, root, layout, tag="v1")

    assert "Free space" in caught.value.hint
    check_whole(layout)
    assert not layout.has(root)
    assert list((small_disk / "store/envbuilder/incoming").iterdir()) == []


def test_a_full_disk_leaves_no_archive(small_disk):
    source = MemoryTarget()
    root = fill(source)

    with pytest.raises(DiskFull):
        copy(source, root, ArchiveWriter(small_disk / "image.tar"))

    assert list(small_disk.iterdir()) == []


def test_a_read_only_store_is_read_and_not_written(small_disk):
    layout = LayoutTarget(small_disk / "store", create=True)
    root = fill(layout, size=1000)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)

    layout = LayoutTarget(small_disk / "store", create=True)
    assert layout.lookup("v1") == root
    with pytest.raises(NotWritable, match="Read-only file system"):
        layout.push(describe(b"new"), partial(io.BytesIO, b"new"))
    with pytest.raises(NotWritable):
        layout.tag(root, "v2")
    copy(layout, root, MemoryTarget())

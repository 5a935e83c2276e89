"""The kernel reads what our EROFS writer wrote, over the tars of the layers as they are."""

import ctypes
import errno
import mmap
import os
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings

from envbuilder.layer.erofs import Inode, write_erofs
from envbuilder.layer.erofs_format import Device
from envbuilder.layer.merge import merge
from envbuilder.layer.metadata import erofs_metadata
from envbuilder.layer.tree import directory, file, symlink
from envbuilder.mount.host.kernel import MountRefused, mount_erofs, unmount
from envbuilder.testing.layers import layer_of
from envbuilder.testing.trees import many_names, trees

pytestmark = pytest.mark.slow


def _missing(reason):
    required = os.environ.get("ENVBUILDER_REQUIRE", "").split(",")
    if "all" in required or "erofs" in required:
        pytest.fail(f"EROFS is required here: {reason}")
    pytest.skip(reason)


@contextmanager
def mounted(image, devices):
    """The directory at which the kernel shows ``image`` over the bytes ``devices``."""
    if os.geteuid() != 0:
        _missing("only root mounts EROFS")
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "meta").write_bytes(image)
        files = []
        for number, data in enumerate(devices):
            files.append(base / f"device{number}")
            files[-1].write_bytes(data)
        (base / "root").mkdir()
        try:
            mount_erofs(base / "meta", files, base / "root")
        except MountRefused as error:
            if error.errno in {errno.ENODEV, errno.ENOTBLK, errno.EPERM}:
                _missing(str(error))
            raise
        try:
            yield base / "root"
        finally:
            unmount(base / "root", force=True)


@contextmanager
def mounted_layers(*layers):
    built = [layer_of(entries) for entries in layers]
    with mounted(erofs_metadata([one.layer for one in built]), [one.tar for one in built]) as root:
        yield root, built


def listed(root):
    """Every path below ``root``, as a tree path."""
    found = []
    for folder, names, files in os.walk(root):
        found += [str((Path(folder) / name).relative_to(root)) for name in names + files]
    return sorted(found)


def assert_same(root, merged, tars):
    """Every node of ``merged`` is what the kernel shows at its path, and there is nothing else."""
    nodes = dict(merged.walk())
    assert listed(root) == sorted(nodes)
    links = {}
    for path, node in nodes.items():
        placed, where = node.placed, root / path
        seen = os.lstat(where)
        assert (seen.st_mode, seen.st_uid, seen.st_gid, seen.st_mtime) == (placed.mode, placed.uid, placed.gid, 1), path
        xattrs = {
            name: os.getxattr(where, name, follow_symlinks=False) for name in os.listxattr(where, follow_symlinks=False)
        }
        assert xattrs == dict(placed.xattrs), path
        if node.is_directory:
            below = sum(child.is_directory for child in node.children.values())
            assert seen.st_nlink == 2 + below, path
        elif stat.S_ISLNK(placed.mode):
            assert os.readlink(where) == placed.link, path  # noqa: PTH115  the target as it stands
        elif stat.S_ISREG(placed.mode):
            tar = tars[node.layer]
            assert where.read_bytes() == tar[placed.offset : placed.offset + placed.size], path
            links.setdefault(node.inode, set()).add((seen.st_ino, seen.st_nlink))
        elif stat.S_ISCHR(placed.mode):
            assert (os.major(seen.st_rdev), os.minor(seen.st_rdev)) == placed.device, path
    counts = [node.inode for node in nodes.values() if stat.S_ISREG(node.placed.mode)]
    for inode, seen in links.items():
        assert {nlink for _, nlink in seen} == {counts.count(inode)}, inode
        assert len(seen) == 1, inode


@given(trees(), trees())
@settings(max_examples=25)
def test_the_mounted_tree_is_the_merged_layers(one, two):
    with mounted_layers(one, two) as (root, built):
        assert_same(root, merge([layer.layer.placed for layer in built]), [layer.tar for layer in built])


@pytest.mark.parametrize("block_bits", [9, 10, 12])
def test_directories_of_many_blocks_and_deep_paths_are_found(block_bits):
    deep = "/".join("d" * 40 for _ in range(60))
    built = layer_of(
        [*many_names("many", 3000), file(f"{deep}/end", b"deep"), directory("empty"), symlink("s", "t" * 600)]
    )
    merged = merge([built.layer.placed])
    with mounted(metadata_with([built], block_bits), [built.tar]) as root:
        assert_same(root, merged, [built.tar])
        assert (root / "many" / "02999").exists() is (2999 % 40 == 0)
        assert (root / deep / "end").read_bytes() == b"deep"


def metadata_with(built, block_bits):
    """The metadata of one layer at another block size."""
    merged = merge([built[0].layer.placed])

    def inode(node):
        placed = node.placed
        return Inode(
            mode=placed.mode,
            uid=placed.uid,
            gid=placed.gid,
            size=placed.size,
            data=(0, placed.offset),
            target=os.fsencode(placed.link) if stat.S_ISLNK(placed.mode) else b"",
            xattrs=placed.xattrs,
            children={os.fsencode(name): inode(child) for name, child in node.children.items()},
        )

    devices = [Device(built[0].layer.blob.digest.hex, built[0].layer.tar_size)]
    return write_erofs(inode(merged.root), devices, mtime_s=1, block_bits=block_bits)


def test_a_hundred_thousand_entries_are_all_found():
    built = layer_of(
        [file(f"d{number % 997}/{'n' * (number % 60)}{number}", b"%d" % number) for number in range(100_000)]
    )
    with mounted(erofs_metadata([built.layer]), [built.tar]) as root:
        found = sum(len(files) for _, _, files in os.walk(root))
        sample = [(root / f"d{number % 997}" / f"{'n' * (number % 60)}{number}") for number in range(0, 100_000, 9973)]

        assert found == 100_000
        assert [path.read_bytes() for path in sample] == [b"%d" % number for number in range(0, 100_000, 9973)]


def test_a_sparse_file_beyond_four_gigabytes_is_read_where_it_has_data(tmp_path):
    size, at = (5 << 30) + 4096 + 100, 5 << 30
    whole = -(-(8192 + size) // 4096) * 4096
    with (tmp_path / "device").open("wb") as device:
        device.truncate(whole)
        device.seek(8192 + at)
        device.write(b"here")
    root = Inode(
        mode=stat.S_IFDIR | 0o755, children={b"big": Inode(mode=stat.S_IFREG | 0o644, size=size, data=(0, 8192))}
    )
    (tmp_path / "meta").write_bytes(write_erofs(root, [Device("d", whole)], mtime_s=1))
    (tmp_path / "root").mkdir()
    try:
        mount_erofs(tmp_path / "meta", [tmp_path / "device"], tmp_path / "root")
    except MountRefused as error:
        _missing(str(error))
    try:
        with (tmp_path / "root/big").open("rb") as stream:
            assert os.fstat(stream.fileno()).st_size == size
            assert os.pread(stream.fileno(), 4, at) == b"here"
            assert os.pread(stream.fileno(), 4096, 4096) == bytes(4096)
            assert os.pread(stream.fileno(), 4096, size - 100) == bytes(100)
    finally:
        unmount(tmp_path / "root", force=True)


def test_a_hundred_layers_are_a_hundred_devices():
    layers = [[file(f"f{number}", b"%d" % number * 5000), file("same", b"%d" % number)] for number in range(100)]
    with mounted_layers(*layers) as (root, _):
        assert (root / "same").read_bytes() == b"99"
        assert all((root / f"f{number}").read_bytes() == b"%d" % number * 5000 for number in range(100))


@pytest.mark.parametrize("size", [1, 511, 512, 513, 700, 3584, 4095])
@pytest.mark.parametrize("large", [0, 4096, 40_960])
def test_a_zero_follows_the_end_of_every_mapped_file(size, large):
    # docs/formats/lazy-index.md, "Behind the end of a file": at least up to the next 512 bytes, and to
    # the end of the page where the tar has no zero to show.
    data = b"x" * (large + size)
    with mounted_layers([file("a", data), file("b", b"y" * 9000)]) as (root, _):
        page = page_at(root / "a", large)
        zeros = 4096 - size if size % 512 == 0 else -size % 512

        assert (root / "a").read_bytes() == data
        assert page[:size] == b"x" * size
        assert page[size : size + zeros] == bytes(zeros)


def test_blocks_of_512_bytes_show_zeros_to_the_end_of_the_page():
    built = layer_of([file("a", b"x" * 700), file("b", b"y" * 9000)])
    with mounted(metadata_with([built], 9), [built.tar]) as root:
        assert page_at(root / "a", 0) == (b"x" * 700).ljust(4096, b"\0")


def page_at(path, offset):
    """The page of ``path`` at ``offset`` as a mapping shows it, what lies behind the end included."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, offset)
    finally:
        os.close(descriptor)
    page = ctypes.string_at(address, mmap.PAGESIZE)
    libc.munmap(address, mmap.PAGESIZE)
    return page

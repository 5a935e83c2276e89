import re
import stat
import struct
from pathlib import Path

import pytest

from envbuilder.layer import erofs
from envbuilder.layer.erofs import ImageTooLarge, Inode, write_erofs
from envbuilder.layer.erofs_format import Device, UnsupportedXattr, device_number, xattr_area
from envbuilder.layer.metadata import erofs_metadata
from envbuilder.layer.tree import directory, file
from envbuilder.testing.layers import layer_of

ROOT = Inode(mode=stat.S_IFDIR | 0o755)


def write(root, devices=(), **options):
    return write_erofs(root, devices, mtime_s=1, **options)


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


def test_an_empty_tree_is_one_block_with_a_root():
    image = write(ROOT)
    root_nid, inodes = struct.unpack_from("<HQ", image, 1024 + 14)

    assert len(image) == 4096
    assert (image[1024:1028].hex(), image[1036], inodes) == ("e2e1f5e0", 12, 1)
    assert struct.unpack_from("<H", image, root_nid * 32 + 4) == (stat.S_IFDIR | 0o755,)


@pytest.mark.parametrize(("bits", "end"), [(12, 4096), (9, 1536), (10, 2048)])
def test_the_checksum_covers_the_block_of_the_super_block(bits, end):
    image = bytearray(write(ROOT, block_bits=bits))
    (want,) = struct.unpack_from("<I", image, 1028)
    image[1028:1032] = bytes(4)

    assert crc32c(image[1024:end]) == want


def test_devices_have_their_tags_and_follow_each_other_behind_the_image():
    image = write(ROOT, [Device("ab" * 32, 8192), Device("cd" * 32, 4097)])
    slots = [struct.unpack_from("<64sII", image, 1152 + 128 * n) for n in range(2)]

    assert [slot[0] for slot in slots] == [b"ab" * 32, b"cd" * 32]
    assert [slot[1:] for slot in slots] == [(2, 1), (2, 3)]
    assert struct.unpack_from("<I", image, 1024 + 36) == (1,)


def test_a_large_owner_or_file_takes_an_extended_inode():
    image = write(Inode(mode=stat.S_IFDIR, uid=70_000))
    (nid,) = struct.unpack_from("<H", image, 1024 + 14)

    assert struct.unpack_from("<H", image, nid * 32) == (2 << 1 | 1,)
    assert struct.unpack_from("<I", image, nid * 32 + 24) == (70_000,)


def test_device_numbers_are_encoded_as_the_kernel_does():
    assert [device_number(1, 3), device_number(259, 300)] == [0x103, 0x11032C]


def test_more_blocks_than_addresses_are_refused():
    with pytest.raises(ImageTooLarge):
        write(ROOT, [Device("x", 1 << 44)])


def test_attributes_are_written_with_their_prefix_as_a_number():
    area = xattr_area((("user.a", b"xy"), ("security.capability", b"\1")), source="test")

    assert area[12:] == b"\1\1\2\0axy\0" + b"\x0a\x06\1\0capability\1\0"


@pytest.mark.parametrize("name", ["user.", "system.nfs4_acl", "x", "system.posix_acl_access2", "user." + "n" * 256])
def test_an_attribute_that_erofs_cannot_name_is_refused(name):
    with pytest.raises(UnsupportedXattr):
        xattr_area(((name, b""),), source="test")


def test_metadata_do_not_depend_on_the_order_of_entries():
    entries = [directory("a"), file("a/b", b"1"), file("c", b"2" * 5000)]

    assert erofs_metadata([layer_of(entries).layer]) == erofs_metadata([layer_of(entries[::-1]).layer])


def only_file(**fields):
    """Layout, i_u and chunk table of the only file of an image with two devices."""
    inode = Inode(mode=stat.S_IFREG, **fields)
    image = write(Inode(mode=stat.S_IFDIR, children={b"f": inode}), [Device("a", 1 << 20), Device("b", 1 << 30)])
    (nid,) = struct.unpack_from("<H", image, 1024 + 14)
    at = nid * 32 + 96  # The root is 32 bytes and 40 of names; inodes begin at multiples of 32.
    layout, where = struct.unpack_from("<H14xI", image, at)
    bits = where & 0x1F
    blocks = -(-fields["size"] // 4096)
    table = [struct.unpack_from("<HHI", image, at + 32 + 8 * n) for n in range(-(-blocks >> bits))]
    return layout >> 1, where, table, image


def test_a_file_is_one_chunk_of_its_device():
    layout, where, table, _ = only_file(size=10_000, data=(1, 8192))

    assert (layout, where) == (4, 0x20 | 2)
    assert table == [(0, 2, 2)]


def test_an_end_that_the_image_holds_is_a_chunk_of_its_own():
    _, where, table, image = only_file(size=6 * 4096 + 512, data=(1, 4096), tail=b"t" * 512)

    assert where == 0x20 | 1
    assert table == [(0, 2, 1), (0, 2, 3), (0, 2, 5), (0, 0, 1)]
    assert image[4096:] == (b"t" * 512).ljust(4096, b"\0")


def test_an_end_behind_very_many_chunks_stays_in_the_device():
    few, many = 9000 * 4096 + 512, 9001 * 4096 + 512

    assert len(only_file(size=few, data=(1, 0), tail=b"t" * 512)[2]) == 1126
    assert only_file(size=many, data=(1, 0), tail=b"t" * 512)[2] == [(0, 2, 0)]


def test_an_empty_file_has_no_block():
    layout, where, table, _ = only_file(size=0)

    assert (layout, where, table) == (0, 0xFFFFFFFF, [])


def test_a_child_with_the_name_of_a_dot_does_not_take_its_place():
    def tree(*names):
        return Inode(mode=stat.S_IFDIR | 0o755, children={name: Inode(mode=stat.S_IFREG | 0o644) for name in names})

    image = write(tree(b".", b"..", b"x"))
    root_nid = struct.unpack_from("<H", image, 1024 + 14)[0]
    at = image.rindex(b"...x")
    first, second = (struct.unpack_from("<Q", image, at - 36 + 12 * number)[0] for number in range(2))

    assert (first, second) == (root_nid, root_nid)


def test_the_writer_can_be_taken_alone():
    folder = Path(erofs.__file__).parent
    names = {
        name
        for file in ("erofs.py", "erofs_format.py")
        for name in re.findall(r"^(?:from|import) (envbuilder[\w.]*)", (folder / file).read_text(), re.MULTILINE)
    }

    assert names == {"envbuilder.errors", "envbuilder.layer", "envbuilder.layer.erofs_format"}

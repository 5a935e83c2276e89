"""Layers in the lazy formats of others: what the tables say is where it says, and the tar is what it was."""

import base64
import gzip
import io
import json
import tarfile
import zlib
from random import Random

import pytest
import zstandard

from envbuilder.custom.flavours.chunked import write_chunked
from envbuilder.custom.flavours.convert import convert
from envbuilder.custom.flavours.crc64 import crc64
from envbuilder.custom.flavours.entries import NoFlavour
from envbuilder.custom.flavours.stargz import write_stargz
from envbuilder.digest import Digest
from envbuilder.image.inspect import open_image
from envbuilder.image.plain import plain_tar
from envbuilder.layer.foreign_tar import BadLayer
from envbuilder.layer.tree import directory, file, symlink
from envbuilder.mount.foreign.toc import read_table
from envbuilder.oci import media_types
from envbuilder.oci.platform import Platform
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.foreign import foreign_tar, gzip_layer, member, push_foreign
from envbuilder.testing.layers import layer_of, push_image

BIG = Random(3).randbytes((4 << 20) + 12_345)
MEMBERS = [
    member("./"),
    member("./a/"),
    member("./a/big", BIG, uid=7, gid=8, mode=0o4755),
    member("./a/empty", b""),
    member("./a/link", type=tarfile.SYMTYPE, linkname="big"),
    member("./a/hard", type=tarfile.LNKTYPE, linkname="./a/big"),
    member("./a/fine", b"time\n", pax_headers={"mtime": "1700000000.125", "SCHILY.xattr.user.x": "y"}),
    member("./a/" + "long" * 60, b"name"),
    member("./last", b"x" * 513),
]
TAR = foreign_tar(MEMBERS)


def made(write, tar=TAR, jobs=2):
    out = io.BytesIO()
    written = write(io.BytesIO(tar), out, jobs=jobs, source="test")
    return written, out.getvalue()


def test_the_checksum_is_crc_64_go_iso():
    def bit_by_bit(data):
        value = (1 << 64) - 1
        for byte in data:
            value ^= byte
            for _ in range(8):
                value = value >> 1 ^ (0xD800000000000000 if value & 1 else 0)
        return value ^ ((1 << 64) - 1)

    assert crc64(b"123456789") == 0xB90956C775A41001  # of the RevEng catalogue
    assert crc64(b"") == 0
    for size in (1, 7, 8, 9, 100, 8191, 8192, 8193, 8199, 8200, 16384, 20_000):
        data = Random(size).randbytes(size)
        whole = bit_by_bit(data)
        assert crc64(data) == whole
        assert crc64(data[size // 3 :], crc64(data[: size // 3])) == whole


@pytest.mark.parametrize("write", [write_stargz, write_chunked])
def test_the_same_bytes_come_out_with_any_number_of_threads(write):
    assert made(write, jobs=1) == made(write, jobs=5)


def test_a_zstd_chunked_layer_unpacks_to_the_tar_that_it_was():
    written, blob = made(write_chunked)

    with plain_tar(io.BytesIO(blob)) as plain:
        assert plain.read() == TAR
    assert written.diff_id == Digest.of(TAR)
    assert (written.digest, written.size) == (Digest.of(blob), len(blob))


def test_an_estargz_layer_unpacks_to_the_tar_between_a_landmark_and_the_table():
    written, blob = made(write_stargz)
    tar = gzip.decompress(blob)

    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        names = members.getnames()
        assert names == [".no.prefetch.landmark", *(info.name.rstrip("/") for info, _ in MEMBERS), "stargz.index.json"]
        assert members.extractfile("./a/big").read() == BIG
        assert members.extractfile("./last").read() == b"x" * 513
    assert written.diff_id == Digest.of(tar)
    # A landmark, its padding, and then the tar as it is but for its end.
    data_end = TAR.index(b"x" * 513) + 1024
    assert tar[1024:].startswith(TAR[:data_end])


@pytest.mark.parametrize("write", [write_stargz, write_chunked])
def test_our_own_reader_finds_every_file_through_the_table(tmp_path, write):
    written, blob = made(write)
    layout = LayoutTarget(tmp_path, create=True)
    layout.push(written.descriptor, lambda: io.BytesIO(blob))

    layer = read_table(layout, written.descriptor)

    device = b"".join(
        layer.spans.read(number, blob[chunk.blob_offset :][: chunk.blob_size], source="test")
        for number in range(len(layer.spans))
        for chunk in [layer.spans[number]]
    )
    placed = {each.path: each for each in layer.placed}
    assert set(placed) == {"", "a", "a/big", "a/empty", "a/link", "a/hard", "a/fine", "a/" + "long" * 60, "last"}
    assert device[placed["a/big"].offset :][: len(BIG)] == BIG
    assert (placed["a/big"].mode, placed["a/big"].uid, placed["a/big"].gid) == (0o104755, 7, 8)
    assert placed["a/hard"].offset == placed["a/big"].offset
    assert placed["a/fine"].xattrs == (("user.x", b"y"),)
    assert device[placed["last"].offset :][:513] == b"x" * 513


def test_tar_split_and_files_make_the_tar_again():
    written, blob = made(write_chunked)
    prefix = media_types.ZSTD_CHUNKED[0]
    at, size, plain = map(int, written.notes[prefix + ".tarsplit-position"].split(":"))
    stored = blob[at : at + size]
    text = zstandard.decompress(stored)
    files = {info.name: data for info, data in MEMBERS}

    lines = [json.loads(line) for line in text.splitlines()]
    again, checked = bytearray(), 0
    for line in lines:
        payload = base64.b64decode(line["payload"]) if line["payload"] else b""
        if line["type"] == 2:
            again += payload
        elif line.get("size"):
            data = files[line["name"]]
            assert int.from_bytes(payload, "big") == crc64(data)
            again += data
            checked += 1

    assert bytes(again) == TAR
    assert checked == 4
    assert len(text) == plain
    assert [line["position"] for line in lines] == list(range(len(lines)))
    at, size, *_ = map(int, written.notes[prefix + ".manifest-position"].split(":"))
    assert json.loads(zstandard.decompress(blob[at : at + size]))["tarSplitDigest"] == str(Digest.of(stored))


def test_each_piece_of_an_estargz_layer_is_a_gzip_member_that_its_digest_proves():
    written, blob = made(write_stargz)
    table_at = int(blob[-35 + 0 :][:16], 16)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob[table_at:-51]))) as tar:
        text = tar.extractfile("stargz.index.json").read()
    assert written.notes[media_types.STARGZ_TOC_DIGEST] == str(Digest.of(text))
    pieces = [entry for entry in json.loads(text)["entries"] if "chunkDigest" in entry]

    assert len({entry["offset"] for entry in pieces}) == len(pieces) == 6
    for entry in pieces:
        data = zlib.decompressobj(31).decompress(blob[entry["offset"] :])
        assert str(Digest.of(data)) == entry["chunkDigest"]


@pytest.mark.parametrize(
    "members",
    [
        [member("a", b"1"), member("a", b"2")],
        [member("b\udcff", b"1")],
        [member("c", type=b"V")],
    ],
    ids=["twice", "not UTF-8", "a volume label"],
)
@pytest.mark.parametrize("write", [write_stargz, write_chunked])
def test_what_no_table_can_describe_is_refused(write, members):
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:", format=tarfile.GNU_FORMAT, errors="surrogateescape") as out:
        for info, data in members:
            out.addfile(info, io.BytesIO(data))

    with pytest.raises(NoFlavour):
        made(write, tar=tar.getvalue())


@pytest.fixture
def ours(tmp_path):
    """An image of ours in a layout."""
    layout = LayoutTarget(tmp_path / "ours", create=True)
    layers = [
        layer_of([directory("d"), file("d/one", BIG), symlink("d/l", "one")], name="one"),
        layer_of([file("d/two", b"2")], name="two"),
    ]
    image = push_image(layout, layers, tag="1", env={"A": "b"})
    return layout, open_image(layout, image.descriptor, Platform("x86_64"))


def test_a_zstd_chunked_image_has_the_config_of_the_one_it_is_made_of(ours, tmp_path):
    layout, image = ours
    store = LayoutTarget(tmp_path / "store", create=True)

    root = convert(image, layout, store, "zstd-chunked", jobs=2, progress=lambda _size: None)

    made_of = open_image(store, root, Platform("x86_64"))
    assert made_of.manifest.config.digest == image.manifest.config.digest
    paths = {each.path for layer in made_of.manifest.layers for each in read_table(store, layer).placed}
    assert paths == {"d", "d/one", "d/l", "d/two"}
    assert made_of.annotations[media_types.FLAVOUR_OF] == str(image.root.digest)
    assert made_of.lazy is None
    for layer in made_of.manifest.layers:
        assert media_types.EROFS_CHUNK_INDEX_RANGE not in layer.annotations


def test_an_estargz_image_changes_only_the_diff_ids_of_the_config(ours, tmp_path):
    layout, image = ours
    store = LayoutTarget(tmp_path / "store", create=True)

    root = convert(image, layout, store, "estargz", jobs=2, progress=lambda _size: None)

    made_of = open_image(store, root, Platform("x86_64"))
    with layout.fetch(image.manifest.config) as before, store.fetch(made_of.manifest.config) as after:
        old, new = json.loads(before.read()), json.loads(after.read())
    tar = gzip.decompress(store.fetch(made_of.manifest.layers[0]).read())
    assert Digest.of(tar) == made_of.config.diff_ids[0]
    with tarfile.open(fileobj=io.BytesIO(tar)) as members:
        assert members.getnames() == [".no.prefetch.landmark", "d", "d/l", "d/one", "stargz.index.json"]
    assert old.pop("rootfs")["diff_ids"] != new.pop("rootfs")["diff_ids"]
    assert old == new


def test_a_second_conversion_opens_no_layer(ours, tmp_path, monkeypatch):
    layout, image = ours
    store = LayoutTarget(tmp_path / "store", create=True)
    first = convert(image, layout, store, "estargz", jobs=2, progress=lambda _size: None)
    monkeypatch.setattr("envbuilder.custom.flavours.convert._spool", None)

    assert convert(image, layout, store, "estargz", jobs=2, progress=lambda _size: None) == first


def test_a_layer_that_is_not_its_diff_id_s_tar_is_refused(tmp_path):
    layout = LayoutTarget(tmp_path / "from", create=True)
    layer = gzip_layer(TAR)
    object.__setattr__(layer, "tar", TAR + bytes(512))
    image = open_image(layout, push_foreign(layout, [layer]), Platform("x86_64"))

    with pytest.raises(BadLayer, match="want diff_id"):
        convert(image, layout, LayoutTarget(tmp_path / "to", create=True), "estargz", jobs=1, progress=lambda _s: None)


def test_a_layer_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    layout = LayoutTarget(tmp_path / "from", create=True)
    image = open_image(layout, push_foreign(layout, [gzip_layer(TAR)]), Platform("x86_64"))
    monkeypatch.setattr("envbuilder.image.plain.most_bytes", lambda _stored: 1000)

    with pytest.raises(BadLayer, match="unpacks to more than 1000 bytes"):
        convert(image, layout, LayoutTarget(tmp_path / "to", create=True), "estargz", jobs=1, progress=lambda _s: None)

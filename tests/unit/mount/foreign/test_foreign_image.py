"""Layers of others: the device that their tables describe has the bytes of their tar; what is altered is refused."""

import io
import json
import tarfile
from dataclasses import replace

import pytest

from envbuilder.digest import Digest, InvalidDigest
from envbuilder.layer.foreign_tar import BadLayer
from envbuilder.layer.frames import BadChunk
from envbuilder.mount.foreign.image import device_key
from envbuilder.mount.foreign.layerindex import attach_layer_index, dump_layer, find_layer_index, parse_layer
from envbuilder.mount.foreign.pulled import pull_layer
from envbuilder.mount.foreign.spans import BadSpans, parse_spans
from envbuilder.mount.foreign.toc import BadTable, parse_table, read_table
from envbuilder.oci import media_types
from envbuilder.oci.tables import has_table
from envbuilder.paths import UnsafePath
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.foreign import chunked_layer, foreign_tar, gzip_layer, member, push_foreign, stargz_layer

BIG = bytes(range(256)) * 5_000
MEMBERS = [
    member("./"),
    member("./etc/"),
    member("./etc/passwd", b"root:x:0:0\n", uid=3, gid=4, mode=0o4755),
    member("./etc/empty", b""),
    member("./big", BIG, pax_headers={"SCHILY.xattr.user.a": "b"}),
    member("./hard", type=tarfile.LNKTYPE, linkname="./big"),
    member("./soft", type=tarfile.SYMTYPE, linkname="../etc/passwd"),
    member("./etc/.wh.gone", b""),
]
TAR = foreign_tar(MEMBERS)
TABLES = {
    "estargz": stargz_layer(TAR),
    "estargz packed": stargz_layer(TAR, packed=150_000),
    "zstd:chunked": chunked_layer(TAR),
    "zstd:chunked before 1.48": chunked_layer(TAR, prefix=media_types.ZSTD_CHUNKED[1]),
}


def stored(*layers):
    target = MemoryTarget()
    push_foreign(target, layers)
    return target


def device(spans, blob):
    return b"".join(
        spans.read(number, blob[spans.blob_offsets[number] : spans.blob_offsets[number + 1]], source="test")
        for number in range(len(spans))
    )


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_gives_the_tree_and_the_bytes_of_the_tar(kind, tmp_path):
    layer = TABLES[kind]
    made = read_table(as_ranges(layer, tmp_path), layer.descriptor)
    data = device(made.spans, layer.blob)
    found = {each.path: each for each in made.placed}

    assert sorted(found) == ["", "big", "etc", "etc/.wh.gone", "etc/empty", "etc/passwd", "hard", "soft"]
    assert data[found["big"].offset :][: len(BIG)] == BIG
    assert data[found["etc/passwd"].offset :][:11] == b"root:x:0:0\n"
    assert (found["etc/passwd"].uid, found["etc/passwd"].gid, found["etc/passwd"].mode) == (3, 4, 0o104755)
    assert (found["hard"].offset, found["hard"].link) == (found["big"].offset, "big")
    assert found["soft"].link == "../etc/passwd"
    assert found["big"].xattrs == (("user.a", b"b"),)
    assert found["big"].mtime_s == 1_700_000_000
    assert all(each.offset % 4096 == 0 for each in made.placed)


def as_ranges(layer, folder):
    target = LayoutTarget(folder / "layout", create=True)
    push_foreign(target, [layer])
    return target


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_that_is_not_the_manifest_s_is_refused(kind, tmp_path):
    layer = TABLES[kind]
    target = as_ranges(layer, tmp_path)
    notes = {key: f"sha256:{'0' * 64}" if "sha256" in text else text for key, text in layer.notes.items()}

    with pytest.raises(BadTable, match="want sha256:0000"):
        read_table(target, replace(layer.descriptor, annotations=notes))


@pytest.mark.parametrize("kind", TABLES)
def test_an_altered_byte_of_a_chunk_is_refused(kind, tmp_path):
    layer = TABLES[kind]
    spans = read_table(as_ranges(layer, tmp_path), layer.descriptor).spans
    piece = spans.pieces[0]
    blob = bytearray(layer.blob)
    blob[piece.member + 30] ^= 0x10

    with pytest.raises(BadChunk):
        device(spans, bytes(blob))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"name": "../out"}, UnsafePath),
        ({"size": -1}, BadTable),
        ({"size": 1 << 50}, BadTable),
        ({"chunkSize": 3}, BadTable),  # less than the file has
        ({"offset": 1 << 40}, BadSpans),
        ({"innerOffset": 1 << 40}, BadTable),
        ({"chunkDigest": "", "digest": ""}, BadTable),
        ({"chunkDigest": "sha256:zz"}, InvalidDigest),
        ({"type": "socket"}, BadTable),
        ({"type": "hardlink", "linkName": "nothing"}, BadTable),
        ({"uid": -5}, BadTable),
        ({"modtime": "yesterday"}, BadTable),
        ({"xattrs": {"user.a": "***"}}, BadTable),
        ({"xattrs": 5}, BadTable),
    ],
)
def test_a_hostile_table_is_refused(change, error):
    entry = {"name": "a", "type": "reg", "size": 5, "offset": 10, "chunkDigest": str(Digest.of(b"hello"))}
    good = json.dumps({"version": 1, "entries": [entry]}).encode()
    bad = json.dumps({"version": 1, "entries": [entry | change]}).encode()
    parse_table(good, codec="gzip", blob_end=100, source="test")

    with pytest.raises(error):
        parse_table(bad, codec="gzip", blob_end=100, source="test")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"version":2,"entries":[]}', b'{"version":1,"entries":[1]}', b"[" * 9999]
)
def test_what_is_no_table_is_refused(text):
    with pytest.raises(BadTable):
        parse_table(text, codec="gzip", blob_end=100, source="test")


@pytest.mark.parametrize("packing", ["gzip", "plain"])
def test_a_pulled_layer_can_be_read_by_ranges_afterwards(packing, tmp_path):
    layer = gzip_layer(TAR)
    if packing == "plain":
        layer = replace(layer, blob=TAR, media_type=media_types.OCI_LAYER_TAR)
    told = []
    made = pull_layer(stored(layer), layer.descriptor, Digest.of(TAR), tmp_path / "x.tar", told.append)

    assert (tmp_path / "x.tar").read_bytes() == TAR == device(made.spans, layer.blob)
    assert {each.path for each in made.placed} >= {"", "big", "etc/passwd", "etc/.wh.gone"}
    assert sum(told) == len(layer.blob)
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


def test_a_gzip_layer_of_nothing_but_zeros_gets_checkpoints(tmp_path):
    tar = foreign_tar([member("zeros", bytes(40 << 20))])
    layer = gzip_layer(tar)
    made = pull_layer(stored(layer), layer.descriptor, Digest.of(tar), tmp_path / "x.tar", lambda _: None)

    assert len(made.spans) > 2  # a chunk may have 16 MiB
    assert device(made.spans, layer.blob) == tar


def test_a_layer_that_is_not_its_diff_id_is_refused(tmp_path):
    layer = gzip_layer(TAR)
    with pytest.raises(BadLayer, match="want diff_id"):
        pull_layer(stored(layer), layer.descriptor, Digest.of(b"other"), tmp_path / "x.tar", lambda _: None)


def test_a_layer_survives_being_written_and_read(tmp_path):
    layer = gzip_layer(TAR)
    made = pull_layer(stored(layer), layer.descriptor, Digest.of(TAR), tmp_path / "x.tar", lambda _: None)
    names, table = dump_layer(made)
    again = parse_layer(names, table, blob_size=len(layer.blob), source="test")

    assert again.placed == made.placed
    assert device(again.spans, layer.blob) == TAR


def test_a_damaged_table_of_pieces_is_refused_or_still_checked(tmp_path):
    layer = gzip_layer(TAR)
    made = pull_layer(stored(layer), layer.descriptor, Digest.of(TAR), tmp_path / "x.tar", lambda _: None)
    table = dump_layer(made)[1]
    for at in range(0, len(table), 31):
        bad = bytearray(table)
        bad[at] ^= 0x55
        try:
            got = device(parse_spans(bytes(bad), blob_size=len(layer.blob), source="test"), layer.blob)
        except (BadSpans, BadChunk):
            continue
        assert len(got) <= len(TAR) + (32 << 20)
    with pytest.raises(BadSpans):
        parse_spans(table[:-1], blob_size=len(layer.blob), source="test")


def test_an_index_beside_a_layer_is_found_again(tmp_path):
    layer = gzip_layer(TAR)
    target = as_ranges(layer, tmp_path)
    made = pull_layer(target, layer.descriptor, Digest.of(TAR), tmp_path / "x.tar", lambda _: None)
    before = find_layer_index(target, layer.descriptor)
    attach_layer_index(target, layer.descriptor, made)
    found = find_layer_index(target, layer.descriptor)

    assert before is None
    assert found is not None
    assert found.placed == made.placed
    assert device(found.spans, layer.blob) == TAR


def test_only_annotated_layers_have_tables():
    assert has_table(TABLES["estargz"].descriptor)
    assert not has_table(gzip_layer(TAR).descriptor)
    assert io.BytesIO(TABLES["estargz"].blob).read(2) == b"\x1f\x8b"


@pytest.mark.parametrize("table", [media_types.STARGZ_TOC_DIGEST, media_types.ZSTD_CHUNKED[0] + ".manifest-checksum"])
def test_a_layer_with_another_table_is_another_device(table):
    name = "estargz" if table == media_types.STARGZ_TOC_DIGEST else "zstd:chunked"
    blob = TABLES[name].descriptor
    forged = replace(blob, annotations={**blob.annotations, table: str(Digest.of(b"another"))})

    assert device_key(blob) == device_key(replace(blob, annotations=dict(blob.annotations)))
    assert device_key(blob) != device_key(forged)
    assert device_key(blob) != device_key(replace(blob, size=blob.size + 1))


def test_what_a_repository_says_of_a_layer_is_another_device_than_what_was_pulled():
    blob = gzip_layer(TAR).descriptor

    assert len({device_key(blob), device_key(blob, "host/a"), device_key(blob, "host/b")}) == 3

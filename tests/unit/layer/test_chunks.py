import struct
from dataclasses import replace

import pytest

from envbuilder.digest import Digest
from envbuilder.layer.chunks import (
    Chunk,
    ChunkIndex,
    CorruptChunkIndex,
    UnknownChunkIndex,
    even_chunk_size,
    index_range,
    open_index,
    parse_index,
)
from envbuilder.layer.pages import GROUP_SIZE
from envbuilder.layer.tree import file
from envbuilder.oci import media_types
from envbuilder.testing.layers import layer_of

INDEX = ChunkIndex(offsets=(0, 100, 250), blob_offsets=(0, 40, 77), checksums=b"a" * 32 + b"b" * 32)


def test_a_dumped_index_is_parsed_to_the_same():
    assert parse_index(INDEX.dump(), end=77, source="test") == INDEX
    assert len(INDEX.dump()) == 32 + 2 * 48


def test_an_empty_stream_has_an_index_without_chunks():
    empty = ChunkIndex(offsets=(0,), blob_offsets=(0,), checksums=b"")

    assert parse_index(empty.dump(), end=0, source="test") == empty


def test_chunk_at_finds_the_chunk_of_every_byte():
    assert INDEX.chunk_at(0) == INDEX.chunk_at(99) == Chunk(0, 0, 100, 0, 40, b"a" * 32)
    assert INDEX.chunk_at(100) == INDEX.chunk_at(249) == Chunk(1, 100, 150, 40, 37, b"b" * 32)
    for outside in (-1, 250):
        with pytest.raises(IndexError):
            INDEX.chunk_at(outside)


@pytest.mark.parametrize(
    ("at", "new"),
    [
        (0, b"XXXX"),
        (22, b"\1"),
        (16, struct.pack("<I", 3)),
        (16, struct.pack("<I", 0xFFFFFFFF)),
        (8, struct.pack("<Q", 100)),
        (8, struct.pack("<Q", 2**63)),
        (32, struct.pack("<Q", 41)),
        (40, struct.pack("<Q", 1)),
        (88, struct.pack("<Q", 0)),
        (80, struct.pack("<Q", 78)),
    ],
    ids=[
        "magic",
        "reserved",
        "count",
        "huge count",
        "empty last",
        "huge last",
        "blob order",
        "start",
        "same",
        "past end",
    ],
)
def test_an_index_that_contradicts_itself_is_refused(at, new):
    data = bytearray(INDEX.dump())
    data[at : at + len(new)] = new

    with pytest.raises(CorruptChunkIndex):
        parse_index(bytes(data), end=77, source="test")


@pytest.mark.parametrize(("at", "value"), [(4, 2), (5, 0), (6, 1), (20, 0), (21, 64)])
def test_an_index_of_another_kind_is_told_apart_from_a_bad_one(at, value):
    data = bytearray(INDEX.dump())
    data[at] = value

    with pytest.raises(UnknownChunkIndex, match="want version 1"):
        parse_index(bytes(data), end=77, source="test")


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 79, 127])
def test_a_truncated_index_is_refused(cut):
    with pytest.raises(CorruptChunkIndex):
        parse_index(INDEX.dump()[:cut], end=77, source="test")


def with_annotation(blob, key, text):
    return replace(blob, annotations={**blob.annotations, key: text})


def test_the_index_of_a_blob_is_found_and_checked_by_its_annotations():
    built = layer_of([file("a", b"x" * 600_000)])
    start, end = index_range(built.layer.blob, source="test")
    index = open_index(built.layer.blob, built.blob[start:end], source="test")

    assert end == len(built.blob)
    assert index.size == built.layer.tar_size
    assert index.blob_offsets[-1] == start


@pytest.mark.parametrize("text", ["", "x", "1-2", "-1:5", "5:4", "0:99999999999999999999", "10", "0:999999"])
def test_a_range_outside_the_blob_is_refused(text):
    blob = with_annotation(layer_of([file("a", b"x")]).layer.blob, media_types.EROFS_CHUNK_INDEX_RANGE, text)

    if text == "10":  # The end may be left out: it is the blob's.
        assert index_range(blob, source="test") == (10, blob.size)
    else:
        with pytest.raises(CorruptChunkIndex):
            index_range(blob, source="test")


def test_another_index_than_the_annotated_one_is_refused():
    built = layer_of([file("a", b"x")])
    start, end = index_range(built.layer.blob, source="test")
    other = with_annotation(built.layer.blob, media_types.EROFS_CHUNK_INDEX_DIGEST, str(Digest.of(b"")))
    frame = built.blob[start:end]

    for blob, data in ((other, frame), (built.layer.blob, frame[:-1]), (built.layer.blob, b"\0" + frame[1:])):
        with pytest.raises(CorruptChunkIndex):
            open_index(blob, data, source="test")


@pytest.mark.parametrize("power", range(4))
@pytest.mark.parametrize("size", [GROUP_SIZE // 2, GROUP_SIZE, 4 * GROUP_SIZE, 9 * GROUP_SIZE, 9 * GROUP_SIZE + 512])
def test_how_long_an_index_is_tells_the_size_of_chunks(power, size):
    """Of one chunk any size that has room for it is right."""
    made = layer_of([file("x", bytes(size - 512))], chunk_size=GROUP_SIZE << power)
    blob, tar_size = made.layer.blob, made.layer.tar_size
    found = even_chunk_size(blob, tar_size, unit=GROUP_SIZE, source="test")
    where = index_range(blob, source="test")
    index = open_index(blob, made.blob[slice(*where)], source="test")

    assert tuple(range(0, tar_size, found)) == index.offsets[:-1]


@pytest.mark.parametrize("size", [GROUP_SIZE, 3 * GROUP_SIZE, 100 * GROUP_SIZE, 1 << 60])
def test_an_index_of_another_length_tells_no_size(size):
    made = layer_of([file("x", bytes(5 * GROUP_SIZE))], chunk_size=GROUP_SIZE)
    plain = replace(made.layer.blob, annotations={})

    assert even_chunk_size(made.layer.blob, size, unit=GROUP_SIZE, source="test") == 0
    assert even_chunk_size(plain, size, unit=GROUP_SIZE, source="test") == 0

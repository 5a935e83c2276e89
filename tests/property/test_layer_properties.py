import io
import tarfile

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.layer.chunks import CorruptChunkIndex, UnknownChunkIndex, parse_index
from envbuilder.layer.frames import FrameWriter, read_chunk
from envbuilder.layer.merge import merge
from envbuilder.layer.metadata import erofs_metadata
from envbuilder.layer.tar import write_tar
from envbuilder.testing.layers import layer_of, tar_of
from envbuilder.testing.trees import trees


@given(trees(), st.randoms(use_true_random=False))
def test_tar_bytes_do_not_depend_on_the_order_of_entries(entries, rng):
    shuffled = entries[:]
    rng.shuffle(shuffled)

    assert tar_of(shuffled) == tar_of(entries)


@given(trees())
def test_a_tar_reader_gets_every_entry_back(entries):
    out = io.BytesIO()
    placed = {item.path: item for item in write_tar(entries, out)}
    data = out.getvalue()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = {info.name: info for info in tar}

    assert set(found) == set(placed)
    assert len(data) % 4096 == 0
    for entry in entries:
        info, item = found[entry.path], placed[entry.path]
        source = entry if entry.open is not None or not entry.is_file else placed[item.link or entry.path]
        assert (info.mode, info.uid, info.gid) == (source.mode & 0o7777, source.uid, source.gid)
        assert (info.mtime, info.uname, info.gname) == (1, "", "")
        if entry.is_symlink:
            assert info.linkname == entry.link
        if info.isreg() and entry.open is not None:
            assert item.offset % 4096 == 0
            assert data[item.offset : item.offset + entry.size] == entry.open().read()
            assert info.size == entry.size


@given(st.binary(max_size=3000).map(lambda part: part * 400), st.integers(1, 700_000))
def test_the_chunks_of_a_blob_are_the_stream(data, piece):
    out = io.BytesIO()
    writer = FrameWriter(out)
    for start in range(0, len(data), piece):
        writer.write(data[start : start + piece])
    framed = writer.finish()
    blob = out.getvalue()
    chunks = [read_chunk(c, blob[c.blob_offset : c.blob_offset + c.blob_size], source="test") for c in framed.index]

    assert b"".join(chunks) == data
    assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(blob), read_across_frames=True).read() == data


@given(st.binary(max_size=200), st.integers(0, 300))
def test_hostile_indexes_are_refused_or_consistent(noise, end):
    header = b"\xcd\xe4\xec\x67\1\1\0\0" + noise
    for candidate in (noise, header):
        try:
            index = parse_index(candidate, end=end, source="test")
        except (CorruptChunkIndex, UnknownChunkIndex):
            continue
        assert list(index.offsets) == sorted(set(index.offsets))
        assert index.dump() == candidate


@given(st.lists(trees(), max_size=3))
def test_what_no_later_layer_names_is_in_the_merged_tree(layers):
    built = [layer_of(entries).layer for entries in layers]
    merged = merge([layer.placed for layer in built])
    visible = {path: node.placed for path, node in merged.walk()}

    for number, layer in enumerate(built):
        later = {item.path for other in built[number + 1 :] for item in other.placed}
        for item in layer.placed:
            ancestors = {item.path[:at] for at, char in enumerate(item.path) if char == "/"}
            if item.path not in later and not ancestors & later:
                assert visible[item.path] == item
    assert len(erofs_metadata(built)) % 4096 == 0

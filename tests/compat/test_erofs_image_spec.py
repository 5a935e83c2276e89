"""The real image against the producer requirements of the draft EROFS image spec (spec.md 640fd6a5, section 8.1).

Read with a parser of its own, from the text of the spec, and with nothing of ours.
"""

import hashlib
import struct

import pytest
import zstandard

pytestmark = pytest.mark.slow

FILESYSTEM = {"application/vnd.erofs", "application/vnd.erofs+zstd"}
HEADER = struct.Struct("<4sBBHQIBB10s")
SKIPPABLE = struct.Struct("<II")
EROFS_MAGIC, DEVICE_SLOT = 0xE0F5E1E2, 128


def sha256(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def devices(hello):
    return hello.erofs["layers"][:-1]


@pytest.fixture(scope="module")
def metadata(hello):
    """The last layer's descriptor, and the file system that it unpacks to."""
    what = hello.erofs["layers"][-1]
    data = hello.blob(what["digest"]).read_bytes()
    return what, zstandard.ZstdDecompressor().decompress(data) if what["mediaType"].endswith("+zstd") else data


def chunk_index(hello, what):
    """Where the frame begins, and header and entries of an embedded chunk index (3.4.1 to 3.4.3)."""
    blob = hello.blob(what["digest"]).read_bytes()
    start, _, end = what["annotations"]["org.erofs.chunk-index.range"].partition(":")
    frame = blob[int(start) : int(end) if end else len(blob)]
    magic, size = SKIPPABLE.unpack_from(frame)
    payload = frame[SKIPPABLE.size :]
    assert 0x184D2A50 <= magic <= 0x184D2A5F
    assert size == len(payload)
    assert sha256(payload) == what["annotations"]["org.erofs.chunk-index.digest"]
    header = HEADER.unpack_from(payload)
    entry = struct.Struct(f"<QQ{header[7]}s")
    assert len(payload) == HEADER.size + header[5] * entry.size
    return blob, int(start), header, list(entry.iter_unpack(payload[HEADER.size :]))


def test_hosts_that_know_nothing_of_it_are_told_by_a_feature_and_find_a_tar_manifest_first(hello):
    first, second = hello.index["manifests"]

    assert "os.features" not in first["platform"]
    assert second["platform"]["os.features"] == ["erofs"]
    config = hello.blob(hello.erofs["config"]["digest"]).read_bytes()
    assert b'"os.features":["erofs"]' in config
    assert b"os.features" not in hello.blob(hello.plain["config"]["digest"]).read_bytes()
    assert not FILESYSTEM & {layer["mediaType"] for layer in hello.plain["layers"]}


def test_the_last_layer_is_a_mountable_file_system_and_all_before_are_its_devices(devices, metadata):
    what, image = metadata

    assert what["mediaType"] in FILESYSTEM
    assert "org.erofs.role" not in what["annotations"]
    assert struct.unpack_from("<I", image, 1024)[0] == EROFS_MAGIC
    assert sha256(image) == what["annotations"]["org.erofs.uncompressed-digest"]
    assert {layer["annotations"]["org.erofs.role"] for layer in devices} == {"device"}


def test_each_device_slot_is_tagged_with_the_digest_of_its_blob(devices, metadata):
    _, image = metadata
    count, first = struct.unpack_from("<HH", image, 1024 + 86)

    tags = [image[(first + number) * DEVICE_SLOT :][:64] for number in range(count)]

    assert [tag.decode() for tag in tags] == [layer["digest"].removeprefix("sha256:") for layer in devices]


def test_the_file_system_has_no_whiteouts(metadata):
    assert b".wh." not in metadata[1]


def test_every_chunk_index_is_what_3_4_describes(hello, devices):
    for what in devices:
        blob, frame_at, header, entries = chunk_index(hello, what)
        magic, version, compression, flags, size, count, algorithm, hash_size, reserved = header
        assert (magic, version, compression, flags) == (b"\xcd\xe4\xec\x67", 1, 1, 0)
        assert (algorithm, hash_size, reserved) == (1, 32, bytes(10))
        assert count == len(entries) > 0
        ends = [(at, offset) for at, offset, _ in entries[1:]] + [(frame_at, size)]
        whole = hashlib.sha256()
        place = 0
        for (at, offset, checksum), (end, next_offset) in zip(entries, ends, strict=True):
            stored = blob[at:end]
            assert offset == place
            assert hashlib.sha256(stored).digest() == checksum
            # Exactly one frame: a decompressor of one ends where the chunk ends.
            one = zstandard.ZstdDecompressor().decompressobj()
            plain = one.decompress(stored)
            assert one.eof
            assert one.unused_data == b""
            assert len(plain) == next_offset - offset
            whole.update(plain)
            place = next_offset
        assert "sha256:" + whole.hexdigest() == what["annotations"]["org.erofs.uncompressed-digest"]


def test_diff_ids_say_the_same_as_the_annotations(hello):
    noted = [layer["annotations"]["org.erofs.uncompressed-digest"] for layer in hello.erofs["layers"]]

    config = hello.blob(hello.erofs["config"]["digest"]).read_text()
    assert [digest for digest in noted if digest not in config] == []
    assert noted[:-1] == hello.plain_config["rootfs"]["diff_ids"]

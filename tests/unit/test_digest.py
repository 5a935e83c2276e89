"""Digests, verified reading and strict JSON: the place where bytes are checked."""

import io
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.digest import (
    Descriptor,
    Digest,
    DigestMismatch,
    InvalidDigest,
    InvalidJson,
    VerifyingReader,
    canonical_json,
    describe,
    parse_json_object,
    read_into,
)


def reader(data: bytes, promised: bytes) -> VerifyingReader:
    return VerifyingReader(io.BytesIO(data), Digest.of(promised), len(promised), source="test")


@pytest.mark.parametrize("text", ["", "sha256:", "sha256:" + "A" * 64, "sha256:" + "0" * 63, "../../etc", "sha512:" + "0" * 128, "sha256:" + "0" * 64 + "\n"])  # fmt: skip
def test_what_is_not_a_sha256_is_no_digest(text):
    with pytest.raises(InvalidDigest):
        Digest.parse(text)


@given(st.binary(max_size=5000), st.integers(min_value=1, max_value=700))
def test_a_true_stream_passes_through_unchanged(data, size):
    stream = reader(data, data)
    parts = iter(lambda: stream.read(size), b"")

    assert b"".join(parts) == data


@given(st.binary(min_size=1, max_size=3000), st.integers(min_value=1, max_value=700))
def test_an_altered_stream_never_gives_its_last_block(data, size):
    altered = bytes([data[0] ^ 1]) + data[1:]
    stream, got = reader(altered, data), b""

    with pytest.raises(DigestMismatch):
        while block := stream.read(size):
            got += block
    assert len(got) < len(data)


def read_all_into(stream, sizes):
    """All of ``stream``, by ``readinto`` where a size is odd and ``read`` where it is even, in turns."""
    got = b""
    for size in sizes:
        if size % 2:
            room = bytearray(b"?" * size)
            block = bytes(room[: stream.readinto(room)])
        else:
            block = stream.read(size)
        got += block
        if not block:
            return got
    return got + stream.read()


SIZES = st.lists(st.integers(min_value=1, max_value=900), max_size=20)


@given(st.binary(max_size=5000), SIZES)
def test_what_is_read_and_what_is_read_into_a_buffer_is_one_stream(data, sizes):
    assert read_all_into(reader(data, data), sizes) == data


@given(st.binary(min_size=1, max_size=3000), SIZES, st.sampled_from(["altered", "short", "long"]))
def test_a_buffer_is_never_said_to_hold_the_last_bytes_of_a_wrong_stream(data, sizes, fault):
    wrong = {"altered": bytes([data[0] ^ 1]) + data[1:], "short": data[:-1], "long": data + b"x"}[fault]

    with pytest.raises(DigestMismatch):
        read_all_into(reader(wrong, data), sizes)


@pytest.mark.parametrize("size", [0, 3])
def test_a_buffer_without_room_gets_nothing_and_loses_nothing(size):
    stream = reader(b"abc"[:size], b"abc"[:size])

    assert stream.readinto(bytearray()) == 0
    assert stream.read() == b"abc"[:size]


def test_a_stream_that_only_reads_fills_a_buffer_too():
    class Plain:
        def read(self, size=-1, /):
            return b"abc"[:size]

    room = memoryview(bytearray(5))
    assert read_into(Plain(), room) == 3
    assert room == b"abc\0\0"


@pytest.mark.parametrize(("data", "want"), [(b"abc", b"abcd"), (b"", b"x")])
def test_a_short_stream_is_refused(data, want):
    with pytest.raises(DigestMismatch):
        reader(data, want).readall()


def test_a_long_stream_is_refused_after_one_byte_too_many():
    inner = io.BytesIO(b"abc" + b"x" * 10_000)
    stream = VerifyingReader(inner, Digest.of(b"abc"), 3, source="test")

    with pytest.raises(DigestMismatch):
        stream.readall()
    assert inner.tell() == 4


@pytest.mark.parametrize("text", ["NaN", "-Infinity", '"\\ud800"', '{"\\udc00x": 1}'])
def test_what_json_does_not_have_is_refused(text):
    with pytest.raises(InvalidJson):
        parse_json_object(f'{{"a": {text}}}'.encode(), source="test")


def test_a_pair_of_escapes_is_a_character():
    assert parse_json_object(rb'{"a": "\ud83d\ude00"}', source="test") == {"a": "\N{GRINNING FACE}"}


def test_a_duplicate_among_many_keys_is_found_at_once():
    data = "{" + ",".join(f'"{number}":0' for number in range(200_000)) + ',"77":0}'
    start_s = time.monotonic()

    with pytest.raises(InvalidJson, match="duplicate key '77'"):
        parse_json_object(data.encode(), source="test")
    assert time.monotonic() - start_s < 20  # comparing each with each took minutes


def test_a_duplicate_key_is_refused():
    with pytest.raises(InvalidJson, match="duplicate key 'a'"):
        parse_json_object(b'{"a": 1, "b": {"a": 1, "a": 2}}', source="test")


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'"x"', b"\xff{}", b"[" * 100_000])
def test_what_is_not_a_json_object_is_refused(data):
    with pytest.raises(InvalidJson):
        parse_json_object(data, source="test")


def test_canonical_json_does_not_depend_on_key_order():
    assert canonical_json({"b": 1, "a": "é"}) == canonical_json({"a": "é", "b": 1}) == '{"a":"é","b":1}'.encode()


def test_a_descriptor_survives_its_json():
    what = describe(b"x", "text/plain", annotations={"a": "b"}, platform={"os": "linux"}, artifact_type="t")

    assert Descriptor.from_json(what.to_json()) == what


@pytest.mark.parametrize(
    "change", [{"size": -1}, {"size": 1 << 63}, {"size": 10**4000}, {"size": True}, {"size": "1"}, {"digest": "x"}, {"mediaType": None}, {"annotations": {"a": 1}}, {"platform": []}]
)  # fmt: skip
def test_a_malformed_descriptor_is_refused(change):
    with pytest.raises((InvalidJson, InvalidDigest)):
        Descriptor.from_json({**describe(b"x").to_json(), **change})

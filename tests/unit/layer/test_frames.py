import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from envbuilder.digest import Digest
from envbuilder.layer.chunks import index_range
from envbuilder.layer.frames import CHUNK_SIZE, BadChunk, FrameWriter, read_chunk
from envbuilder.layer.framing import FramingDied


def framed(data, piece=100_003, helpers=0):
    out = io.BytesIO()
    writer = FrameWriter(out, helpers=helpers)
    for start in range(0, len(data), piece):
        writer.write(data[start : start + piece])
    return writer.finish(), out.getvalue()


DATA = random.Random(1).randbytes(CHUNK_SIZE // 2) * 5 + b"end"


def test_any_zstd_decoder_gets_the_stream_back():
    result, blob = framed(DATA)

    assert zstandard.ZstdDecompressor().stream_reader(io.BytesIO(blob), read_across_frames=True).read() == DATA
    assert (result.diff_id, result.tar_size) == (Digest.of(DATA), len(DATA))
    assert (result.blob.digest, result.blob.size) == (Digest.of(blob), len(blob))


def test_every_chunk_is_one_frame_that_declares_its_size():
    result, blob = framed(DATA)
    read = [read_chunk(c, blob[c.blob_offset : c.blob_offset + c.blob_size], source="test") for c in result.index]

    assert [len(part) for part in read] == [CHUNK_SIZE, CHUNK_SIZE, CHUNK_SIZE // 2 + 3]
    assert b"".join(read) == DATA
    for chunk in result.index:
        frame = zstandard.get_frame_parameters(blob[chunk.blob_offset :][: chunk.blob_size])
        assert (frame.content_size, frame.has_checksum) == (chunk.size, False)


@pytest.mark.parametrize("piece", [1, 4096, CHUNK_SIZE, CHUNK_SIZE * 3])
def test_the_blob_does_not_depend_on_how_it_was_written(piece):
    data = DATA[:5000] if piece == 1 else DATA

    assert framed(data, piece) == framed(data)


@pytest.mark.parametrize("helpers", [1, 3])
@pytest.mark.parametrize("data", [b"", b"short", DATA * 8])
def test_the_blob_does_not_depend_on_who_helped(data, helpers):
    assert framed(data, helpers=helpers) == framed(data)


class FullAfter:
    def __init__(self, size):
        self.left = size

    def write(self, data):
        self.left -= len(data)
        if self.left < 0:
            raise OSError(28, "No space left on device")


def children():
    return {int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


@pytest.mark.parametrize("helpers", [0, 2])
def test_a_writer_that_fails_leaves_no_process_and_no_thread_behind(helpers):
    before, threads = children(), threading.active_count()
    with pytest.raises(OSError, match="No space"), FrameWriter(FullAfter(CHUNK_SIZE), helpers=helpers) as writer:
        assert len(children() - before) == helpers
        writer.write(random.Random(2).randbytes(CHUNK_SIZE * 9))
        writer.finish()

    assert (children(), threading.active_count()) == (before, threads)


def test_killed_helpers_are_an_error_and_no_endless_wait():
    before = children()
    with pytest.raises(FramingDied, match="ended early"), FrameWriter(io.BytesIO(), helpers=2) as writer:
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)
        writer.write(random.Random(2).randbytes(CHUNK_SIZE) * 9)
        writer.finish()

    assert children() == before


def test_a_helper_that_is_killed_at_its_work_is_an_error_though_others_live():
    before = children()
    with pytest.raises(FramingDied, match="ended early"), FrameWriter(io.BytesIO(), helpers=2) as writer:
        first, _ = helpers = children() - before
        for pid in helpers:
            os.kill(pid, signal.SIGSTOP)
        writer.write(DATA)
        os.kill(first, signal.SIGKILL)
        writer.finish()

    assert children() == before


def test_a_helper_does_not_outlive_a_killed_caller():
    code = (
        "import io, os; from envbuilder.layer.frames import FrameWriter; writer = FrameWriter(io.BytesIO(), helpers=1);"
        "writer.write(bytes(1 << 20)); print(open('/proc/self/task/%d/children' % os.getpid()).read(), flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert (done.returncode, done.stderr) == (-9, b"")
    (helper,) = done.stdout.split()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{int(helper)}/exe").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not Path(f"/proc/{int(helper)}/exe").exists()


def test_an_empty_stream_is_a_blob_with_an_empty_index():
    result, blob = framed(b"")

    assert len(result.index) == 0
    assert len(blob) == 8 + 32
    assert index_range(result.blob, source="test") == (0, 40)


def stored_chunk():
    result, blob = framed(b"abc" * 1000)
    chunk = result.index[0]
    return chunk, blob[: chunk.blob_size]


@pytest.mark.parametrize("change", ["flip", "short", "long", "empty"])
def test_a_chunk_with_other_bytes_is_refused(change):
    chunk, stored = stored_chunk()
    bad = {"flip": stored[:-1] + b"\0", "short": stored[:-1], "long": stored + b"\0", "empty": b""}[change]

    with pytest.raises(BadChunk, match="chunk 0: want sha256:"):
        read_chunk(chunk, bad, source="test")


@pytest.mark.parametrize(
    "stored",
    [
        b"no frame",
        zstandard.compress(b"x" * 100),
        zstandard.compress(b"x" * 3000) * 2,
        zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 3000),
        zstandard.compress(b"x" * 3000)[:-1],
    ],
    ids=["garbage", "too small", "two frames", "no size", "truncated"],
)
def test_a_chunk_that_is_not_one_frame_of_its_size_is_refused(stored):
    chunk, _ = stored_chunk()
    promised = replace(chunk, blob_size=len(stored), sha256=hashlib.sha256(stored).digest())

    with pytest.raises(BadChunk):
        read_chunk(promised, stored, source="test")

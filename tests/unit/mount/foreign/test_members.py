"""Deflate data are read from the middle, whatever bit a checkpoint lies at, over the ends of gzip members."""

import gzip
import io
from random import Random

import indexed_gzip
import pytest

from envbuilder.mount.foreign import pulled
from envbuilder.mount.foreign.members import DAMAGES, Member, Unpacking, inflate, unzip, unzstd

TEXT = b"".join(b"%d squared is %d\n" % (number, number * number) for number in range(40_000))
DATA = TEXT + Random(3).randbytes(200_000) + TEXT[::-1]


def checkpoints(blob):
    with indexed_gzip.IndexedGzipFile(fileobj=io.BytesIO(blob), spacing=1 << 16) as unzipped:
        unzipped.build_full_index()
        out = io.BytesIO()
        unzipped.export_index(fileobj=out)
    return list(pulled._points(out.getvalue(), io.BytesIO(blob)))


def test_every_checkpoint_gives_the_bytes_that_follow_it_and_all_bit_offsets_occur():
    seen = set()
    for level in (1, 6, 9):
        blob = gzip.compress(DATA, level, mtime=0) + gzip.compress(DATA[::-1], level, mtime=0)
        whole = DATA + DATA[::-1]
        points = checkpoints(blob)
        for (where, offset, dumped), after in zip(points, [*points[1:], (len(blob), len(whole), b"")], strict=True):
            start = Member.load(dumped)
            seen.add(start.bits)
            got = Unpacking(inflate(memoryview(blob)[where : after[0]], start)).take(after[1] - offset)
            assert got == whole[offset : after[1]], (level, offset, start.bits)

    assert seen == set(range(8))


def test_reading_goes_on_over_members_and_stops_at_the_end():
    blob = gzip.compress(b"one", mtime=0) + gzip.compress(b"two", mtime=0)
    unpacking = Unpacking(unzip(memoryview(blob)))
    unpacking.skip(1)

    assert unpacking.take(5) == b"netwo"
    with pytest.raises(EOFError, match="ends 1 bytes early"):
        unpacking.take(1)


@pytest.mark.parametrize("unpack", [unzip, unzstd])
def test_damaged_members_raise_what_readers_expect(unpack):
    for stored in (b"nothing of the kind", gzip.compress(DATA)[:1000]):
        with pytest.raises(DAMAGES):
            Unpacking(unpack(memoryview(stored))).take(len(DATA))

"""The fetcher: one request a chunk, reads that wait for a source, altered chunks, a full store, read-ahead."""

import hashlib
import io
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

import pytest

from envbuilder.digest import describe
from envbuilder.errors import UnavailableError
from envbuilder.layer.frames import Framed, FrameWriter
from envbuilder.layer.pages import GROUP_SIZE as CHUNK_SIZE
from envbuilder.mount.chunks.store import ChunkStore, StoredBlob
from envbuilder.mount.counters import Counters
from envbuilder.mount.fetch import link, remote, schedule
from envbuilder.mount.fetch.lazyblob import LazyBlob
from envbuilder.mount.fetch.remote import Fetcher
from envbuilder.mount.foreign.spans import Piece, span_map
from envbuilder.mount.request import Device

CHUNKS = 40
TAR = Random(1).randbytes(CHUNKS * CHUNK_SIZE)


def framed() -> tuple[Framed, bytes]:
    out = io.BytesIO()
    writer = FrameWriter(out, chunk_size=CHUNK_SIZE)
    writer.write(TAR)
    return writer.finish(), out.getvalue()


FRAMED, BLOB = framed()


class Source:
    """A source in memory; ``fault`` is asked before every answer and may raise or change it."""

    name = "memory"

    def __init__(self, fault: Callable[[bytes], bytes] = bytes, blob: bytes = BLOB) -> None:
        self.fault, self.blob = fault, blob
        self.asked: list[tuple[int, int]] = []

    def fetch_range(self, what, offset, size):
        self.asked.append((offset, size))
        return self.fault(self.blob[offset : offset + size])


def altered(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(remote, "_PAUSE_S", 0.001)
    monkeypatch.setattr(remote, "_LONGEST_PAUSE_S", 0.01)


@pytest.fixture(autouse=True)
def _steady_link(monkeypatch):
    """Sixteen chunks a guess, however long a source in memory takes: what a link makes of it is test_link.py's."""
    for bound in ("_UNKNOWN", "_LEAST", "_MOST"):  # rounded up: frames of random bytes are larger than chunks
        monkeypatch.setattr(link, bound, 16 * CHUNK_SIZE)


DEVICE = Device(FRAMED.blob, FRAMED.tar_size)


@contextmanager
def fetching(tmp_path, source: Source, **options) -> Iterator[tuple[Fetcher, LazyBlob]]:
    background = options.pop("background", False)
    device = options.pop("device", DEVICE)
    fetcher = Fetcher("image", [device], ChunkStore(tmp_path / "store"), Counters(tmp_path / "counters"), **options)
    fetcher.start(source, background=background)
    try:
        yield fetcher, fetcher.blobs[0]
    finally:
        fetcher.stop()


def read(blob: LazyBlob, offset: int, size: int) -> bytes:
    """A read as the FUSE server does it."""
    buffer = memoryview(bytearray(size))
    while not blob.read_now(offset, buffer):
        answered, errors = threading.Event(), []

        def done(error, answered=answered, errors=errors):
            errors.append(error)
            answered.set()

        blob.when_ready(offset, size, done)
        assert answered.wait(10)
        if errors[0] is not None:
            raise errors[0]
    return bytes(buffer)


def test_a_read_gets_the_bytes_of_the_tar(tmp_path):
    with fetching(tmp_path, Source()) as (_, blob):
        assert read(blob, 100, 70) == TAR[100:170]
        assert read(blob, CHUNK_SIZE - 5, 10) == TAR[CHUNK_SIZE - 5 : CHUNK_SIZE + 5]
        assert read(blob, len(TAR) - 9, 9) == TAR[-9:]


@pytest.mark.parametrize("starts", [(0, 1000, 2000), (0, 1000)])
def test_a_last_chunk_that_is_larger_than_the_others_is_read_to_its_end(tmp_path, starts):
    """As checkpoints of gzip layers lie: the last one has all that is left."""
    plain = Random(3).randbytes(5_000)
    pieces = [
        Piece(start, end - start, start, hashlib.sha256(plain[start:end]).digest())
        for start, end in itertools.pairwise([*starts, len(plain)])
    ]
    spans = tmp_path / "spans"
    spans.write_bytes(span_map("plain", pieces, device_size=len(plain), blob_end=len(plain), joined=1).dump())
    device = Device(describe(plain, "application/test"), len(plain), spans=spans)
    with fetching(tmp_path, Source(blob=plain), device=device) as (_, blob):
        assert read(blob, 4_990, 10) == plain[-10:]
        assert read(blob, 900, 3_000) == plain[900:3_900]


def test_what_was_read_is_not_asked_for_again(tmp_path):
    source = Source()
    with fetching(tmp_path, source) as (_, blob):
        read(blob, 0, 10)
        before = len(source.asked)
        read(blob, 20, 10)

        assert len(source.asked) == before


def test_another_fetcher_over_the_same_store_asks_for_nothing(tmp_path):
    with fetching(tmp_path, Source()) as (_, blob):
        read(blob, 0, 10)
    source = Source()
    with fetching(tmp_path, source) as (_, blob):
        read(blob, 0, 10)

    assert source.asked == []


def test_the_chunk_that_is_read_does_not_wait_for_those_that_come_with_it(tmp_path):
    go = threading.Event()

    class Parts(Source):
        def fetch_parts(self, what, offset, sizes):
            for number, size in enumerate(sizes):
                if number:
                    assert go.wait(10)
                yield self.fetch_range(what, offset, size)
                offset += size

    with fetching(tmp_path, Parts()) as (fetcher, blob):
        assert read(blob, 3 * CHUNK_SIZE, 10) == TAR[3 * CHUNK_SIZE :][:10]
        assert fetcher.counters.snapshot().fetched_chunks == 1
        go.set()
        assert read(blob, 4 * CHUNK_SIZE, 10) == TAR[4 * CHUNK_SIZE :][:10]
        assert fetcher.counters.snapshot().requests == 1


def test_a_chunk_that_many_want_is_fetched_once(tmp_path):
    go = threading.Event()

    def hold(data: bytes) -> bytes:
        go.wait(10)
        return data

    source = Source()
    with fetching(tmp_path, source) as (_, blob):
        read(blob, 20 * CHUNK_SIZE, 1)  # the index is here
        source.asked.clear()
        source.fault = hold
        answered = [threading.Event() for _ in range(50)]
        for event in answered:
            blob.when_ready(0, 10, lambda _error, event=event: event.set())
        go.set()  # only now is the first of them answered

        assert all(event.wait(10) for event in answered)
        assert len(source.asked) == 1


def test_neighbouring_missing_chunks_are_one_request(tmp_path):
    source = Source()
    with fetching(tmp_path, source) as (_, blob):
        read(blob, 20 * CHUNK_SIZE, 1)
        source.asked.clear()
        read(blob, 0, 4 * CHUNK_SIZE)

        # And fifteen that follow the last.
        assert source.asked == [(0, FRAMED.index.blob_offsets[19])]


def test_a_sequential_reader_is_read_ahead_for_in_growing_requests(tmp_path):
    source = Source()
    with fetching(tmp_path, source) as (_, blob):
        for number in range(CHUNKS):
            assert read(blob, number * CHUNK_SIZE, CHUNK_SIZE) == TAR[number * CHUNK_SIZE :][:CHUNK_SIZE]

    assert len(source.asked) < CHUNKS / 3


def test_a_read_fetches_what_follows_up_to_what_is_here(tmp_path):
    source = Source()
    offsets = FRAMED.index.blob_offsets
    with fetching(tmp_path, source) as (_, blob):
        for number in (9, 2, 30):
            read(blob, number * CHUNK_SIZE, 10)
    ranges = source.asked[1:]  # the first is the index

    assert ranges == [(offsets[a], offsets[b] - offsets[a]) for a, b in ((9, 25), (2, 9), (30, 40))]


def test_a_reader_that_goes_downwards_is_read_ahead_for_too(tmp_path):
    source = Source()
    with fetching(tmp_path, source) as (_, blob):
        for number in reversed(range(CHUNKS)):
            assert read(blob, number * CHUNK_SIZE, CHUNK_SIZE) == TAR[number * CHUNK_SIZE :][:CHUNK_SIZE]

    assert len(source.asked) < CHUNKS / 3


def test_a_read_waits_while_the_source_is_away_and_then_succeeds(tmp_path):
    failures = iter(range(6))

    def flaky(data: bytes) -> bytes:
        if next(failures, None) is not None:
            raise UnavailableError("away")
        return data

    with fetching(tmp_path, Source(flaky)) as (fetcher, blob):
        assert read(blob, 0, 10) == TAR[:10]
        assert fetcher.counters.snapshot().outages == 6
        assert fetcher.counters.snapshot().failed == 0


def test_a_read_fails_after_the_limit_and_the_next_one_is_tried_again(tmp_path):
    away = True

    def flaky(data: bytes) -> bytes:
        if away:
            raise UnavailableError("away")
        return data

    with fetching(tmp_path, Source(flaky), wait_limit_s=0.05) as (fetcher, blob):
        with pytest.raises(OSError, match=r"Input/output|away"):
            read(blob, 0, 10)
        away = False

        assert fetcher.counters.snapshot().failed == 1
        assert read(blob, 0, 10) == TAR[:10]


def test_an_altered_chunk_is_fetched_again(tmp_path):
    source = Source()
    with fetching(tmp_path, source) as (fetcher, blob):
        read(blob, 20 * CHUNK_SIZE, 1)
        bad = iter([True])
        source.fault = lambda data: altered(data) if next(bad, False) else data

        assert read(blob, 0, 10) == TAR[:10]
        assert fetcher.counters.snapshot().refetched_chunks == 1


def test_a_chunk_that_stays_altered_is_an_error_and_never_stored(tmp_path, caplog):
    source = Source()
    with fetching(tmp_path, source) as (_, blob):
        read(blob, 20 * CHUNK_SIZE, 1)
        source.fault = altered
        with pytest.raises(OSError, match="promised"):
            read(blob, 0, 10)

        assert not blob.stored.has(0, 0)
    assert all(text in caplog.text for text in ("image", "memory", str(FRAMED.blob.digest), "chunk 0"))


def test_a_short_answer_is_an_error_and_never_data(tmp_path):
    source = Source()
    with fetching(tmp_path, source) as (_, blob):
        read(blob, 20 * CHUNK_SIZE, 1)
        source.fault = lambda data: data[:100]
        with pytest.raises(OSError, match="promised"):
            read(blob, 0, 10)


def test_an_altered_index_is_an_error(tmp_path):
    with (
        fetching(tmp_path, Source(lambda data: data[:-1] + b"x")) as (_, blob),
        pytest.raises(OSError, match="promised"),
    ):
        read(blob, 0, 10)


def test_a_full_store_still_gives_the_bytes(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(StoredBlob, "write", full)
    with fetching(tmp_path, Source()) as (_, blob):
        assert read(blob, 100, 2 * CHUNK_SIZE) == TAR[100 : 100 + 2 * CHUNK_SIZE]
        assert not blob.stored.has(0, 0)


def test_the_background_fetches_the_rest_once_nobody_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "_QUIET_S", 0.01)
    with fetching(tmp_path, Source(), background=True) as (fetcher, blob):
        while blob.stored is None or blob.stored.missing_count:
            threading.Event().wait(0.005)
        counted = fetcher.counters.snapshot()

        assert counted.fetched_chunks == CHUNKS
        assert counted.background_chunks == CHUNKS


def test_everything_is_fetched_in_few_requests_and_told(tmp_path):
    source, told = Source(), []
    with fetching(tmp_path, source) as (fetcher, _):
        fetcher.fetch_all(lambda done, total: told.append((done, total)))

    assert told[-1] == (CHUNKS, CHUNKS)
    assert ChunkStore(tmp_path / "store").is_complete(DEVICE.stored_as, FRAMED.tar_size)
    assert len(source.asked) < 8


def test_fetching_everything_fails_when_the_source_is_away_for_too_long(tmp_path):
    def away(data: bytes) -> bytes:
        raise UnavailableError("away")

    with (
        fetching(tmp_path, Source(away), wait_limit_s=0.1) as (fetcher, _),
        pytest.raises(remote.SourceAway, match="nothing came"),
    ):
        fetcher.fetch_all(lambda _done, _total: None)


def test_stopping_answers_the_reads_that_wait(tmp_path):
    def away(data: bytes) -> bytes:
        raise UnavailableError("away")

    errors: list[OSError | None] = []
    with fetching(tmp_path, Source(away)) as (_, blob):
        blob.when_ready(0, 10, errors.append)

    assert [type(error) for error in errors] == [OSError]


def test_a_read_fails_at_its_limit_although_its_request_still_trickles_and_the_next_one_asks_anew(tmp_path):
    stuck, asked = threading.Event(), threading.Event()

    def fault(data):
        if stuck.is_set() and not asked.is_set():
            asked.set()
            while stuck.is_set():
                time.sleep(0.01)
        return data

    with fetching(tmp_path, Source(fault), wait_limit_s=0.1) as (_, blob):
        read(blob, 0, 10)
        stuck.set()
        with pytest.raises(OSError, match="within the limit"):
            read(blob, 30 * CHUNK_SIZE, 10)
        again = read(blob, 30 * CHUNK_SIZE, 10)
        stuck.clear()

    assert again == TAR[30 * CHUNK_SIZE :][:10]


@pytest.mark.parametrize("step_s", [-1e9, 1e9])
def test_a_clock_that_is_set_neither_fails_a_read_nor_lets_it_wait_for_ever(tmp_path, monkeypatch, step_s):
    now = itertools.count(2e9, step_s)
    monkeypatch.setattr(time, "time", lambda: max(0.0, next(now)))
    away = threading.Event()

    def fault(data):
        if away.is_set():
            raise UnavailableError("away")
        return data

    with fetching(tmp_path, Source(fault), wait_limit_s=0.3) as (_, blob):
        read(blob, 0, 10)
        away.set()
        begun = time.monotonic()
        with pytest.raises(OSError, match="away"):
            read(blob, 30 * CHUNK_SIZE, 10)
        waited_s = time.monotonic() - begun
        away.clear()
        again = read(blob, 30 * CHUNK_SIZE, 10)

    assert 0.3 <= waited_s < 5
    assert again == TAR[30 * CHUNK_SIZE :][:10]

"""Whatever is read, and whatever the link does: nothing beyond a layer, nothing twice, bounded, demand first."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuilder.digest import describe
from envbuilder.layer.chunks import ChunkIndex
from envbuilder.mount.chunks.store import ChunkStore
from envbuilder.mount.counters import Counters
from envbuilder.mount.fetch.guess import Cut, behind, run_from
from envbuilder.mount.fetch.jobs import FOREGROUND
from envbuilder.mount.fetch.schedule import Schedule
from envbuilder.mount.fetch.slots import FreeTurn
from envbuilder.mount.request import Device

#: A small layer: the borders are near. Its chunks are stored in sizes from next to nothing to much.
COUNT, CHUNK = 70, 4096
STORED = [1_000 if number % 7 else 200_000 for number in range(COUNT)]
INDEX = ChunkIndex(
    offsets=tuple(range(0, COUNT * CHUNK + 1, CHUNK)),
    blob_offsets=tuple(sum(STORED[:number]) for number in range(COUNT + 1)),
    checksums=bytes(32 * COUNT),
)
#: Bytes of a guess, the most of a link's and a chunk more.
MOST = 3_200_000
PLACES = st.integers(0, COUNT - 1)


@given(PLACES, st.sets(PLACES), st.integers(1, 40), st.integers(10, 24), st.booleans())
def test_a_guess_is_of_other_chunks_of_the_layer_and_no_more_than_it_may_be(chunk, read, most, power, traced):
    cut = Cut(count=COUNT, size=1 << power, most=most)
    for guessed in (run_from(chunk, read, cut), behind(chunk, read, cut, traced=traced)):
        assert len(guessed) <= max(most, (4 << 20) >> power, 1)
        assert chunk not in guessed
        assert set(guessed) <= set(range(COUNT))


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ahead")
    return lambda number: ChunkStore(folder / str(number)), Counters(folder / "counters")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(PLACES, st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=25),
    st.floats(1e-5, 10),
    st.floats(1e3, 1e10),
    st.integers(0, 10**9),
)
def test_a_schedule_hands_out_what_is_waited_for_first_and_each_chunk_once(stores, reads, answer_s, rate, name):
    open_store, counters = stores
    blob_descriptor = describe(f"{name} {reads}".encode(), "application/test")
    schedule = Schedule([Device(blob_descriptor, INDEX.size)], counters, connections=4, wait_limit_s=100)
    blob, stored = schedule.blobs[0], open_store(0).open(blob_descriptor.digest, INDEX.offsets[:-1], INDEX.size)
    schedule.opened(blob, INDEX, stored)
    schedule.told(answer_s, 1_000_000 / rate, 1_000_000)
    answered = []
    try:
        for number, (first, chunks, jobs) in enumerate(reads):
            offset = first * CHUNK
            size = min(chunks * CHUNK, INDEX.size - offset)
            if not stored.has(first, (offset + size - 1) // CHUNK):
                schedule.want(blob, offset, size, lambda error, number=number: answered.append((number, error)))
            else:
                answered.append((number, None))
            for _ in range(jobs):
                _serve(schedule, stored)
        while len(answered) < len(reads):
            _serve(schedule, stored)
        assert [error for _, error in answered] == [None] * len(reads)
    finally:
        schedule.stop()
        stored.close()


def _serve(schedule: Schedule, stored) -> None:
    """Fetch one job, if there is one, and look at it."""
    foreground, ahead = ([job for job in queue if not job.started] for queue in schedule._queues)
    if not foreground and not ahead:
        return
    job = schedule.next_job(FreeTurn())
    assert job is not None
    assert job.priority == FOREGROUND or not foreground
    assert 0 <= job.first <= job.last < COUNT
    sizes = STORED[job.first : job.last + 1]
    assert sum(sizes) <= 2 * MOST
    numbers = schedule.wanted_of(job)
    assert not any(stored.has(number, number) for number in numbers)
    assert all(one < other for one, other in pairwise(numbers))
    for number in numbers:
        stored.write(number, bytes(CHUNK))
        schedule.finish(job, number, STORED[number])
    schedule.ended(job)

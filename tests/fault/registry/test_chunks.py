import io

import pytest

from envbuilder.digest import describe
from envbuilder.registry.capabilities import Capabilities
from envbuilder.registry.chunks import MAX_CHUNK
from envbuilder.registry.errors import BadAnswer
from envbuilder.registry.upload import UploadSettings
from envbuilder.testing.registry import Reply, header, refuse

BLOB = bytes(range(256)) * 400  # 102,400 bytes
CHUNK = 30_000  # three chunks and a rest
CHUNKS = UploadSettings(way="chunks", chunk_size=CHUNK)


def push(world, **options):
    world.repository(upload=CHUNKS, **options).push(describe(BLOB), lambda: io.BytesIO(BLOB))


def stored(world):
    return world.registry.blobs.get(str(describe(BLOB).digest)) == BLOB


def uploads(world):
    return [request.method for request in world.registry.requests if "uploads" in request.path]


def sent(world):
    return sum(len(request.body) for request in world.registry.requests if request.method in ("PATCH", "PUT"))


def test_chunks_follow_each_other_and_an_empty_put_closes_them(world):
    push(world)

    assert stored(world)
    assert uploads(world) == ["POST", "PATCH", "PATCH", "PATCH", "PATCH", "PUT"]
    ranges = [request.headers["content-range"] for request in world.registry.seen("PATCH")]
    assert ranges == ["0-29999", "30000-59999", "60000-89999", "90000-102399"]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("which", [1, 2, 4])
def test_a_chunk_whose_answer_was_lost_is_not_sent_again(world, ordered, which):
    """distribution 2.8 appends a replayed chunk and says 202: the session is asked first."""
    world.registry.ordered = ordered
    count = iter(range(1, 100))

    def lose(request, reply):
        return Reply(status=502) if next(count) == which else reply

    world.registry.fault("PATCH", "/uploads/", lose)

    push(world)

    assert stored(world)
    assert uploads(world).count("GET") == 1
    assert sent(world) == len(BLOB)


@pytest.mark.parametrize("which", [1, 3])
def test_a_chunk_that_never_came_is_sent_again_and_no_other(world, which):
    count = iter(range(1, 100))
    world.registry.fault("PATCH", "/uploads/", refuse(502), times=0)
    right = world.registry.uploads.session

    def session(request, repository, name):
        if request.method == "PATCH" and next(count) == which:
            return Reply(status=502)
        return right(request, repository, name)

    world.registry.uploads.session = session

    push(world)

    assert stored(world)
    assert sent(world) == len(BLOB) + CHUNK


@pytest.mark.parametrize("patch_range", ["all", "first", "chunk"])
@pytest.mark.parametrize("status", [201, 202, 204])
def test_a_range_that_counts_wrong_changes_nothing(world, patch_range, status):
    world.registry.patch_range, world.registry.patch_status = patch_range, status

    push(world)

    assert stored(world)
    assert sent(world) == len(BLOB)


def test_a_session_that_is_gone_begins_the_blob_anew(world):
    def lose(request, reply):
        world.registry.uploads.forget()
        return Reply(status=502)

    world.registry.fault("PATCH", "/uploads/", lose, times=1)

    push(world)

    assert stored(world)
    assert uploads(world).count("POST") == 2


def test_a_registry_that_asks_for_larger_chunks_gets_them(world):
    world.registry.min_chunk = 60_000

    push(world)

    assert [len(request.body) for request in world.registry.seen("PATCH")] == [60_000, 42_400]


def test_a_registry_that_asks_for_chunks_beyond_reason_is_refused(world):
    world.registry.min_chunk = MAX_CHUNK + 1

    with pytest.raises(BadAnswer, match="chunks of at most"):
        push(world)
    assert "DELETE" in uploads(world)


def test_a_limit_on_one_body_leads_to_chunks_and_is_remembered(world, tmp_path):
    world.registry.max_put = 50_000
    facts = Capabilities(tmp_path)
    other = b"y" * 70_000

    target = world.repository(capabilities=facts)
    target.push(describe(BLOB), lambda: io.BytesIO(BLOB))
    world.registry.requests.clear()
    world.repository(capabilities=Capabilities(tmp_path)).push(describe(other), lambda: io.BytesIO(other))

    assert stored(world)
    assert facts.get(str(world.client.registry(world.registry.host).origin), "upload") == "chunks"
    assert uploads(world) == ["POST", "PATCH", "PUT"]


def test_a_registry_that_loses_chunks_never_stores_what_was_not_meant(world):
    world.registry.lossy_patch, world.registry.ordered = True, False

    with pytest.raises(Exception, match="DIGEST_INVALID"):
        push(world)
    assert not stored(world)
    assert world.registry.uploads.open == 0


def test_an_interrupt_in_mid_upload_cancels_it(world):
    class Interrupted(io.BytesIO):
        def read(self, size=-1):
            if self.tell() > CHUNK:
                raise KeyboardInterrupt
            return super().read(size)

    for upload in (CHUNKS, UploadSettings()):
        with pytest.raises(KeyboardInterrupt):
            world.repository(upload=upload).push(describe(BLOB), lambda: Interrupted(BLOB))
        assert world.registry.uploads.open == 0
        assert "DELETE" in uploads(world)


def test_a_registry_that_kept_less_than_it_acknowledged_is_believed_when_it_refuses_more(world):
    world.registry.ordered = True

    def keep_less(_request, reply):
        (session,) = world.registry.uploads._sessions.values()
        session.data = session.data[:-10_000]
        return reply

    world.registry.fault("PATCH", "/uploads/", keep_less, times=1)

    push(world)

    assert stored(world)
    assert uploads(world).count("POST") == 1
    # What was refused, and what was kept less, go again.
    assert sent(world) == len(BLOB) + CHUNK + 10_000


@pytest.mark.parametrize("status", [429, 503])
def test_a_chunk_waits_as_long_as_the_registry_asks(world, status):
    world.registry.fault("PATCH", "/uploads/", refuse(status, Retry_After="17"), times=1, instead=True)

    push(world)

    assert stored(world)
    assert world.waits == [17]


def test_a_registry_that_says_it_has_more_than_was_sent_gets_the_blob_anew(world):
    world.registry.fault("PATCH", "/uploads/", refuse(502), times=1, instead=True)
    world.registry.fault("GET", "/uploads/", header("Range", "0-99999999"), times=1)

    push(world)

    assert stored(world)
    assert uploads(world).count("POST") == 2

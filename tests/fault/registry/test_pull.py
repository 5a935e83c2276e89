import json
import logging
from dataclasses import replace

import pytest

from envbuilder.digest import Digest, DigestMismatch, InvalidJson, describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index
from envbuilder.registry import answer
from envbuilder.registry.errors import BadAnswer, RateLimited, RegistryDown
from envbuilder.registry.head import WholeHead
from envbuilder.store.copy import GraphTooLarge, copy_plan
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.referrers import attach, referrers
from envbuilder.store.target import NotFound, ShortRange
from envbuilder.testing.registry import body, cut, drip, endless, header, refuse

BLOB = bytes(range(256)) * 2000
either_way = pytest.mark.parametrize("into", [False, True], ids=["read", "readinto"])


@either_way
@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"x" + data[1:], lambda data: b""]
)
def test_other_bytes_than_the_digest_are_never_handed_over(world, into, change):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("GET", "/blobs/", body(change))

    with pytest.raises(DigestMismatch):
        world.read(what, into=into)


@either_way
def test_an_endless_blob_is_stopped_one_byte_behind_its_size(world, into):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("GET", "/blobs/", endless)

    with pytest.raises(DigestMismatch, match="or more"):
        world.read(what, into=into)


@either_way
def test_a_download_that_breaks_off_is_taken_up_where_it_was(world, into):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("GET", "/blobs/", cut(100_000), times=3)

    assert world.read(what, into=into) == BLOB
    assert [request.headers.get("range") for request in world.registry.seen("GET")] == [
        None,
        "bytes=100000-",
        "bytes=200000-",
        "bytes=300000-",
    ]


@either_way
def test_a_download_is_taken_up_without_ranges_too(world, into):
    what = world.registry.add_blob(BLOB)
    world.registry.ranges = False
    world.registry.fault("GET", "/blobs/", cut(100_000), times=1)

    assert world.read(what, into=into) == BLOB


@either_way
def test_a_download_without_ranges_may_break_off_on_the_way_back_to_where_it_was(world, into):
    what = world.registry.add_blob(BLOB)
    world.registry.ranges = False
    cuts = iter([100_000, 30_000, 60_000, 200_000])

    def cut_somewhere(_request, reply):
        return replace(reply, cut_at=next(cuts, None))

    world.registry.fault("GET", "/blobs/", cut_somewhere)

    assert world.read(what, into=into) == BLOB


def test_a_block_goes_straight_into_the_buffer_that_it_is_read_into(world, monkeypatch):
    """By way of urllib3, which has no public name for that."""
    what = world.registry.add_blob(BLOB)
    real, straight = WholeHead.readinto, []

    def readinto(self, room):
        straight.append(real(self, room))
        return straight[-1]

    monkeypatch.setattr(WholeHead, "readinto", readinto)
    assert world.read(what, into=True) == BLOB
    assert sum(straight) == len(BLOB)


@either_way
def test_a_download_that_gives_nothing_any_more_ends(world, into):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("GET", "/blobs/", cut(0))

    with pytest.raises(RegistryDown, match="connection broke"):
        world.read(what, into=into)


@either_way
def test_a_resumed_download_of_changed_bytes_is_refused(world, into):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("GET", "/blobs/", cut(100_000), times=1)
    world.registry.fault(
        "GET",
        "/blobs/",
        lambda request, reply: body(bytes.swapcase)(request, reply) if "range" in request.headers else reply,
    )

    with pytest.raises(DigestMismatch):
        world.read(what, into=into)


def test_a_range_is_just_the_slice_and_one_request(world):
    what = world.registry.add_blob(BLOB)

    assert world.target.fetch_range(what, 1000, 50_000) == BLOB[1000:51_000]
    assert [request.headers["range"] for request in world.registry.seen("GET")] == ["bytes=1000-50999"]


def test_a_range_answered_with_the_whole_blob_is_cut_out_and_said_once(world, caplog):
    what = world.registry.add_blob(BLOB)
    world.registry.ranges = False

    with caplog.at_level(logging.WARNING):
        assert world.target.fetch_range(what, 1000, 50_000) == BLOB[1000:51_000]
        assert world.target.fetch_range(what, 0, 1) == BLOB[:1]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("text", ["bytes 1001-2000/512000", "bytes 1000-1999/512001", "bytes */512000", "", "x" * 500])
def test_a_range_of_something_else_is_refused(world, text):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("GET", "/blobs/", header("Content-Range", text))

    with pytest.raises(BadAnswer, match="want Content-Range bytes 1000-1999/512000"):
        world.target.fetch_range(what, 1000, 1000)


def test_a_range_that_breaks_off_is_asked_again(world):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("GET", "/blobs/", cut(10), times=2)

    assert world.target.fetch_range(what, 1000, 1000) == BLOB[1000:2000]


def test_a_range_that_is_too_short_is_no_data(world):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("GET", "/blobs/", body(lambda data: data[:-1]))

    with pytest.raises(ShortRange):
        world.target.fetch_range(what, 1000, 1000)


@pytest.mark.parametrize("ranges", [True, False])
def test_parts_are_the_slices_of_one_request(world, ranges):
    what = world.registry.add_blob(BLOB)
    world.registry.ranges = ranges

    assert list(world.target.fetch_parts(what, 1000, [10, 300_000, 1])) == [
        BLOB[1000:1010],
        BLOB[1010:301_010],
        BLOB[301_010:301_011],
    ]
    assert [request.headers["range"] for request in world.registry.seen("GET")] == ["bytes=1000-301010"]


@pytest.mark.parametrize(
    ("fault", "error"), [(cut(200_000), RegistryDown), (body(lambda data: data[:200_000]), ShortRange)]
)
def test_parts_that_came_before_a_break_are_given(world, fault, error):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("GET", "/blobs/", fault)
    parts = world.target.fetch_parts(what, 0, [100_000, 200_000])
    given = [next(parts)]

    with pytest.raises(error):
        next(parts)
    given += world.target.fetch_parts(what, 100_000, [200_000])

    assert b"".join(given) == BLOB[:300_000]


@pytest.mark.parametrize(("offset", "sizes"), [(0, []), (-1, [5]), (len(BLOB), [1])])
def test_parts_outside_the_blob_are_refused(world, offset, sizes):
    what = world.registry.add_blob(BLOB)

    with pytest.raises(ShortRange):
        list(world.target.fetch_parts(what, offset, sizes))


def test_too_many_requests_are_answered_with_the_patience_asked_for(world):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("GET", "/blobs/", refuse(429, "TOOMANYREQUESTS", Retry_After="7"), times=2)

    assert world.read(what) == BLOB
    assert world.waits == [7, 7]


def test_patience_that_exceeds_the_budget_is_an_error_with_the_time_to_wait(world):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("GET", "/blobs/", refuse(429, "TOOMANYREQUESTS", "slow down", Retry_After="3600"))

    with pytest.raises(RateLimited, match="slow down") as caught:
        world.read(what)
    assert caught.value.retry_after_s == 3600
    assert world.waits == []


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_registry_that_stays_down_is_asked_five_times(world, status):
    world.registry.fault("GET", "/manifests/", refuse(status))

    with pytest.raises(RegistryDown, match=str(status)):
        world.target.lookup("v1")
    assert len(world.registry.seen("GET")) == 5


def test_a_registry_that_comes_back_is_not_noticed(world):
    data = world.manifest()
    what = world.registry.add_manifest("a/b", "v1", data, media_types.OCI_MANIFEST)
    world.registry.fault("GET", "/manifests/", refuse(503), times=2)

    assert world.target.lookup("v1") == what


def test_nobody_at_the_port_is_said_with_the_url(world):
    world.registry.__exit__()

    with pytest.raises(RegistryDown, match=r"GET http://127\.0\.0\.1:\d+/v2/a/b/manifests/v1: .*refused"):
        world.target.lookup("v1")


def test_a_moved_tag_gives_another_digest_and_pinned_bytes_stay(world):
    old = world.registry.add_manifest("a/b", "v1", world.manifest(), media_types.OCI_MANIFEST)
    pinned = world.target.lookup("v1")
    new = world.registry.add_manifest("a/b", "v1", world.manifest(annotations={"a": "b"}), media_types.OCI_MANIFEST)

    assert world.target.lookup("v1") == new
    assert Digest.of(world.read(pinned)) == old.digest


def test_a_header_that_lies_about_the_digest_decides_nothing(world, caplog):
    what = world.registry.add_manifest("a/b", "v1", world.manifest(), media_types.OCI_MANIFEST)
    world.registry.fault("GET", "/manifests/", header("Docker-Content-Digest", f"sha256:{'0' * 64}"))

    assert world.target.lookup("v1") == what
    assert "the bytes count" in caplog.text


def test_a_manifest_of_another_digest_than_asked_for_is_refused(world):
    what = world.registry.add_manifest("a/b", "v1", world.manifest(), media_types.OCI_MANIFEST)
    world.registry.fault("GET", "/manifests/", body(lambda data: world.manifest(annotations={"evil": "1"})))

    with pytest.raises(DigestMismatch):
        world.target.lookup(str(what.digest))
    with pytest.raises(DigestMismatch):
        world.read(what)


@pytest.mark.parametrize(
    "data",
    [
        b'{"schemaVersion":2,"mediaType":"%s","config":{},"config":{}}' % media_types.OCI_MANIFEST.encode(),
        b"not json",
        b"[]",
        b"",
        b'{"mediaType":"application/evil"}',
        b'{"a":' * 5000,
    ],
)
def test_a_manifest_that_is_none_is_refused(world, data):
    world.registry.add_manifest("a/b", "v1", data, media_types.OCI_MANIFEST)

    with pytest.raises(InvalidJson):
        world.target.lookup("v1")


def test_a_media_type_that_differs_in_header_and_body_is_refused(world):
    world.registry.add_manifest("a/b", "v1", world.manifest(), media_types.OCI_INDEX)

    with pytest.raises(BadAnswer, match="want one media type"):
        world.target.lookup("v1")


def test_parameters_of_a_media_type_are_no_difference(world):
    what = world.registry.add_manifest("a/b", "v1", world.manifest(), media_types.OCI_MANIFEST)
    world.registry.fault("GET", "/manifests/", header("Content-Type", f"{media_types.OCI_MANIFEST}; charset=utf-8"))

    assert world.target.lookup("v1") == what


@pytest.mark.parametrize("fault", [body(lambda data: b"x" * (5 << 20)), endless])
def test_a_giant_manifest_is_not_read_to_its_end(world, fault):
    world.registry.add_manifest("a/b", "v1", world.manifest(), media_types.OCI_MANIFEST)
    world.registry.fault("GET", "/manifests/", fault)

    with pytest.raises(BadAnswer, match="at most 4194304 bytes"):
        world.target.lookup("v1")


def test_a_manifest_that_comes_a_byte_at_a_time_is_not_waited_for(world, monkeypatch):
    monkeypatch.setattr(answer, "_DOCUMENT_TIMEOUT_S", 0.05)
    world.registry.add_manifest("a/b", "v1", world.manifest(), media_types.OCI_MANIFEST)
    world.registry.fault("GET", "/manifests/", drip(0.01))

    with pytest.raises(RegistryDown, match="no whole answer"):
        world.target.lookup("v1")


def test_an_index_with_more_children_than_an_image_has_is_refused(world):
    children = [
        world.registry.add_manifest("a/b", f"t{n}", world.manifest(annotations={"n": str(n)}), media_types.OCI_MANIFEST)
        for n in range(2)
    ]
    deep = children[0]
    for _ in range(4):
        data = Index(manifests=(deep,)).dump()
        deep = world.registry.add_manifest("a/b", "deep", data, media_types.OCI_INDEX)

    with pytest.raises(GraphTooLarge):
        copy_plan(world.target, world.target.lookup("deep"), MemoryTarget())


def test_an_index_that_claims_to_hold_itself_is_refused(world):
    claimed = describe(b"x" * 300, media_types.OCI_INDEX)
    value = {"schemaVersion": 2, "mediaType": media_types.OCI_INDEX, "manifests": [claimed.to_json()]}
    data = json.dumps(value).encode()
    what = world.registry.add_manifest("a/b", "v1", data, media_types.OCI_INDEX)
    world.registry.manifests["a/b", str(claimed.digest)] = (media_types.OCI_INDEX, data)

    with pytest.raises(DigestMismatch):
        copy_plan(world.target, what, MemoryTarget())


def test_a_stub_of_another_size_is_not_taken_for_the_blob(world):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("HEAD", "/blobs/", header("Content-Length", "0"))

    assert not world.target.has(what)


def test_a_registry_that_refuses_head_is_asked_with_get(world):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("HEAD", "/blobs/", refuse(405))

    assert world.target.has(what)
    assert not world.target.has(describe(b"absent"))


def test_a_warning_of_the_registry_is_shown_once(world, caplog):
    what = world.registry.add_blob(BLOB)
    world.registry.fault("HEAD", "/blobs/", header("Warning", '299 - "this tag \x1b[2Jgoes away"'))

    for _ in range(3):
        world.target.has(what)
    assert [record.message.partition("says: ")[2] for record in caplog.records] == ["this tag  [2Jgoes away"]


def test_a_giant_error_page_is_cut(world):
    world.registry.fault("GET", "/manifests/", refuse(404))
    world.registry.fault("GET", "/manifests/", endless)

    with pytest.raises(NotFound) as caught:
        world.target.lookup("v1")
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("path", ["manifests", "tags/list", "referrers"])
def test_a_document_that_breaks_off_is_asked_for_again(world, path):
    world.registry.referrers = True
    what = world.push(world.manifest(), media_types.OCI_MANIFEST)
    world.target.tag(what, "v1")
    note = attach(world.target, what, "application/vnd.test.note")
    world.registry.requests.clear()
    world.registry.fault("GET", f"/{path}", cut(20), times=2)
    reader = world.repository()

    assert {
        "manifests": lambda: reader.lookup("v1") == what,
        "tags/list": lambda: reader.tag_names() == ("v1",),
        "referrers": lambda: [each.digest for each in referrers(reader, what)] == [note.digest],
    }[path]()
    assert len(world.registry.seen("GET", f"/{path}")) == 3
    assert len(world.waits) == 2


def test_a_document_that_never_comes_whole_is_an_error(world):
    world.push(world.manifest(), media_types.OCI_MANIFEST)
    what = world.push(world.manifest(), media_types.OCI_MANIFEST)
    world.registry.fault("GET", "/manifests", cut(20))

    with pytest.raises(RegistryDown, match="broke"):
        world.repository().fetch(what)
    assert len(world.waits) == 4

"""Registries that promise referrers without having them, page without end, or lose a writer's entry."""

import json
from dataclasses import replace

import pytest

from envbuilder.digest import InvalidDigest, InvalidJson, describe
from envbuilder.oci import media_types
from envbuilder.oci.artifact import artifact, as_referrer, referrers_tag
from envbuilder.oci.manifest import Index
from envbuilder.registry.errors import BadAnswer, RegistryDown
from envbuilder.registry.pages import next_link
from envbuilder.store.referrers import ReferrersContended, attach, referrers
from envbuilder.testing.registry import header, refuse

_NOTE = "application/vnd.example.note"


@pytest.fixture
def subject(world):
    world.push(b"{}")
    return world.push(world.manifest(), media_types.OCI_MANIFEST)


def tag_index(world, subject):
    data = world.registry.manifests["a/b", referrers_tag(subject.digest)][1]
    return [entry["digest"] for entry in json.loads(data)["manifests"]]


def listing(*manifests):
    return Index(manifests=manifests).dump()


def entry(subject, number=0):
    data = artifact(_NOTE, [], subject, {"n": str(number)}).dump()
    return as_referrer(data, source="test")


def test_a_confirmed_subject_without_the_api_is_listed_by_tag_all_the_same(world, subject):
    """AWS once sent OCI-Subject and had no API (sigstore-js#1183)."""
    world.registry.confirms_subject = True

    what = attach(world.target, subject, _NOTE)

    assert tag_index(world, subject) == [str(what.digest)]


def test_with_the_api_no_tag_is_written(world, subject):
    world.registry.referrers = True

    attach(world.target, subject, _NOTE)

    assert world.registry.tags("a/b") == []


def test_an_api_that_does_not_list_what_was_pushed_gets_a_tag(world, subject):
    empty = listing()
    world.registry.fault(
        "GET", "/referrers/", lambda _r, reply: replace(reply, status=200, body=empty, headers={"Content-Type": media_types.OCI_INDEX})
    )  # fmt: skip

    what = attach(world.target, subject, _NOTE)

    assert tag_index(world, subject) == [str(what.digest)]
    assert [each.digest for each in referrers(world.target, subject)] == [what.digest]


@pytest.mark.parametrize("status", [400, 404, 405, 501])
def test_the_api_is_asked_for_once_where_it_is_not(world, subject, status):
    world.registry.fault("GET", "/referrers/", refuse(status))

    for _ in range(3):
        assert referrers(world.target, subject) == ()

    assert len(world.registry.seen("GET", "/referrers/")) == 1


def test_a_web_page_in_place_of_the_api_is_no_api(world, subject):
    page = b"<html>welcome</html>"
    world.registry.fault(
        "GET", "/referrers/", lambda _r, reply: replace(reply, status=200, body=page, headers={"Content-Type": "text/html"})
    )  # fmt: skip

    assert referrers(world.target, subject) == ()


def test_pages_are_followed_and_filtered(world, subject):
    entries = [entry(subject, number) for number in range(3)]
    other = replace(entry(subject, 9), artifact_type="other")
    world.registry.referrers = True

    def page(request, reply):
        number = int(request.query.get("page", ["0"])[0])
        links = {"Link": f'</v2/a/b/referrers/{subject.digest}?page={number + 1}>; rel="next"'} if number < 2 else {}
        return replace(reply, body=listing(entries[number], other), headers={**reply.headers, **links})

    world.registry.fault("GET", "/referrers/", page)

    assert list(referrers(world.target, subject, _NOTE)) == entries
    assert list(referrers(world.target, subject)) == [entries[0], other, *entries[1:]]


@pytest.mark.parametrize(
    "link", ["http://127.0.0.2:1/v2/a/b/referrers/", "https://evil.test/", "/v2/secret/referrers/x", "//evil.test/v2/"]
)
def test_a_next_page_elsewhere_is_refused(world, subject, link):
    world.registry.referrers = True
    world.registry.fault("GET", "/referrers/", header("Link", f'<{link}>; rel="next"'))

    with pytest.raises(BadAnswer):
        referrers(world.target, subject)


def test_a_page_that_is_its_own_next_page_is_refused(world, subject):
    world.registry.referrers = True
    world.registry.fault("GET", "/referrers/", header("Link", f'</v2/a/b/referrers/{subject.digest}>; rel="next"'))

    with pytest.raises(BadAnswer):
        referrers(world.target, subject)


def test_pages_without_end_are_refused(world, subject, monkeypatch):
    monkeypatch.setattr("envbuilder.registry.pages.MAX_PAGES", 5)
    world.registry.referrers = True

    def page(request, reply):
        number = int(request.query.get("page", ["0"])[0]) + 1
        link = f'</v2/a/b/referrers/{subject.digest}?page={number}>; rel="next"'
        return replace(reply, headers={**reply.headers, "Link": link})

    world.registry.fault("GET", "/referrers/", page)

    with pytest.raises(BadAnswer):
        referrers(world.target, subject)
    assert len(world.registry.seen("GET", "/referrers/")) == 5


def test_all_pages_together_have_a_limit(world, subject, monkeypatch):
    monkeypatch.setattr("envbuilder.registry.pages.MAX_TOTAL", 1000)
    world.registry.referrers = True
    world.registry.fault("GET", "/referrers/", lambda _r, reply: replace(reply, body=reply.body + b" " * 2000))

    with pytest.raises(BadAnswer):
        referrers(world.target, subject)


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"manifests":[],"manifests":[]}',
        b'{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"digest":"../../etc"}]}',
        b'{"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","size":2,"digest":"sha256:../x"}]}',
        b'{"mediaType":"application/vnd.oci.image.manifest.v1+json"}',
    ],
)
def test_a_malformed_list_is_refused(world, subject, body):
    world.registry.referrers = True
    world.registry.fault("GET", "/referrers/", lambda _r, reply: replace(reply, body=body))

    with pytest.raises((InvalidJson, InvalidDigest, BadAnswer)):
        referrers(world.target, subject)


def test_a_server_error_is_not_taken_for_no_referrers(world, subject):
    world.registry.fault("GET", "/referrers/", refuse(500))

    with pytest.raises(RegistryDown):
        referrers(world.target, subject)


def test_an_entry_that_another_writer_overwrote_is_written_again(world, subject):
    """The registry has no conditional PUT: the other's write is the last, and ours is gone."""
    other = entry(subject, 7)
    data = listing(other)
    tag = referrers_tag(subject.digest)

    def overwrite(_request, reply):
        world.registry.add_manifest("a/b", tag, data, media_types.OCI_INDEX)
        return reply

    world.registry.fault("PUT", f"/manifests/{tag}", overwrite, times=1)

    what = attach(world.target, subject, _NOTE)

    assert tag_index(world, subject) == [str(other.digest), str(what.digest)]


def test_a_registry_that_compares_says_who_was_first(world, subject):
    other = describe(listing(entry(subject, 7)), media_types.OCI_INDEX)
    tag = referrers_tag(subject.digest)
    world.registry.fault("PUT", f"/manifests/{tag}", refuse(412), times=1, instead=True)
    world.registry.fault("GET", f"/manifests/{tag}", header("ETag", f'"{other.digest}"'))

    first = attach(world.target, subject, _NOTE)
    attach(world.target, subject, _NOTE + "2")

    puts = world.registry.seen("PUT", f"/manifests/{tag}")
    assert [put.headers.get("if-none-match") for put in puts] == ["*", "*", None]
    assert puts[-1].headers["if-match"] == f'"{other.digest}"'
    assert str(first.digest) in tag_index(world, subject)


def test_a_weak_etag_guards_no_writing(world, subject):
    """It compares what is alike, not what is the same (RFC 9110, 13.1.1)."""
    attach(world.target, subject, _NOTE, annotations={"n": "1"})
    tag = referrers_tag(subject.digest)
    world.registry.fault("GET", f"/manifests/{tag}", header("ETag", 'W/"x"'))

    attach(world.target, subject, _NOTE, annotations={"n": "2"})

    assert len(tag_index(world, subject)) == 2
    assert "if-match" not in world.registry.seen("PUT", f"/manifests/{tag}")[-1].headers


def test_a_registry_that_knows_no_conditions_is_written_to_without(world, subject):
    tag = referrers_tag(subject.digest)
    world.registry.fault("PUT", f"/manifests/{tag}", refuse(400), only=lambda request: "if-none-match" in request.headers, instead=True)  # fmt: skip

    what = attach(world.target, subject, _NOTE)

    assert tag_index(world, subject) == [str(what.digest)]


def test_a_registry_that_drops_the_list_is_told_of(world, subject, monkeypatch):
    monkeypatch.setattr("envbuilder.store.referrers._PAUSE_S", 0.0)
    monkeypatch.setattr("envbuilder.store.referrers._SETTLED", 0.0)
    tag = referrers_tag(subject.digest)
    world.registry.fault("GET", f"/manifests/{tag}", refuse(404, "MANIFEST_UNKNOWN"))

    with pytest.raises(ReferrersContended):
        attach(world.target, subject, _NOTE)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", ""),
        ('</a>; rel="next"', "/a"),
        ("</a>; rel=next", "/a"),
        ('</b>; rel="prev", </a?x=1,2>; rel="next"', "/a?x=1,2"),
        ('</a>; title="rel=next"', ""),
        ("</a>", ""),
        ("rel=next", ""),
    ],
)
def test_the_next_page_is_read_from_link_headers(text, want):
    assert next_link(text) == want

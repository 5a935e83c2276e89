"""Every target lists what was attached to an image, whether it has an API for that or only the tag."""

import io
import itertools
import threading
from functools import partial

import pytest

from envbuilder.digest import DigestMismatch, describe
from envbuilder.oci import media_types
from envbuilder.oci.artifact import referrers_tag
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.referrers import (
    ForeignReferrer,
    ReferrersTagTaken,
    attach,
    attach_manifest,
    read_referrer,
    referrers,
    unlist,
)
from envbuilder.store.target import NotFound
from envbuilder.testing.registry import FakeRegistry

_NUMBERS = itertools.count()
_SBOM, _NOTE = "application/vnd.example.sbom", "application/vnd.example.note"


@pytest.fixture(params=["memory", "layout", "docker-registry", "no API", "API"])
def target(request, tmp_path):
    if request.param == "memory":
        yield MemoryTarget()
    elif request.param == "layout":
        yield LayoutTarget(tmp_path / "layout", create=True)
    elif request.param == "docker-registry":
        host = request.getfixturevalue("registry").host
        with RegistryClient() as client:
            yield RegistryTarget(RegistryReference(host, f"referrers/{next(_NUMBERS)}"), client, writable=True)
    else:
        with FakeRegistry() as fake, RegistryClient() as client:
            fake.referrers = request.param == "API"
            yield RegistryTarget(RegistryReference(fake.host, "a/b"), client, writable=True)


def blob(data):
    return describe(data), partial(io.BytesIO, data)


def image(target, text="1"):
    config = b'{"architecture":"amd64","os":"linux","text":"%s"}' % text.encode()
    target.push(*blob(config))
    data = Manifest(config=describe(config, media_types.OCI_CONFIG), layers=()).dump()
    what = describe(data, media_types.OCI_MANIFEST)
    target.push(what, partial(io.BytesIO, data))
    return what


def test_nothing_is_attached_to_a_new_image(target):
    assert referrers(target, image(target)) == ()


def test_what_is_attached_is_listed_by_type_with_its_annotations(target):
    subject = image(target)
    sbom = attach(target, subject, _SBOM, [blob(b"an SBOM")], {"made.by": "us"})
    note = attach(target, subject, _NOTE)

    assert {each.digest for each in referrers(target, subject)} == {sbom.digest, note.digest}
    (listed,) = referrers(target, subject, _SBOM)
    assert listed == sbom
    assert (listed.artifact_type, dict(listed.annotations)) == (_SBOM, {"made.by": "us"})
    assert referrers(target, subject, "application/other") == ()
    assert referrers(target, image(target, "2")) == ()


def test_a_referrer_is_read_with_its_blobs(target):
    subject = image(target)
    what = attach(target, subject, _SBOM, [blob(b"an SBOM")])

    manifest = read_referrer(target, what, subject)

    with target.fetch(manifest.layers[0]) as stream:
        assert stream.read() == b"an SBOM"


def test_attaching_the_same_again_changes_nothing(target):
    subject = image(target)
    first, second = (attach(target, subject, _NOTE, [blob(b"x")]) for _ in range(2))

    assert first == second
    assert referrers(target, subject) == (first,)


def test_nothing_is_attached_to_what_is_not_there(target):
    with pytest.raises(NotFound):
        attach(target, describe(b"{}", media_types.OCI_MANIFEST), _NOTE)


def test_a_manifest_of_another_subject_is_refused(target):
    one, two = image(target, "1"), image(target, "2")
    what = attach(target, one, _NOTE)
    with target.fetch(what) as stream:
        data = stream.read()

    with pytest.raises(ForeignReferrer):
        read_referrer(target, what, two)
    with pytest.raises(ForeignReferrer):
        attach_manifest(target, two, data)


def test_writers_at_the_same_time_lose_nothing(target):
    subject = image(target)
    made = []
    threads = [
        threading.Thread(target=lambda n=n: made.append(attach(target, subject, _NOTE, [blob(b"%d" % n)])))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 4
    assert {each.digest for each in referrers(target, subject)} == {each.digest for each in made}


def test_a_listing_that_was_tampered_with_is_no_referrer(target):
    """The list is anyone's word: size and digest are checked when a referrer is read."""
    subject = image(target)
    what = attach(target, subject, _NOTE)
    lie = describe(b"other bytes", media_types.OCI_MANIFEST)

    with pytest.raises((DigestMismatch, NotFound)):
        read_referrer(target, lie, subject)
    assert read_referrer(target, what, subject)


@pytest.mark.parametrize("document", ["image", "subject"])
def test_a_tag_that_names_something_else_is_not_overwritten(document, tmp_path):
    """GitLab gives the subject itself for its referrers tag (oras-go#1396)."""
    target = LayoutTarget(tmp_path, create=True)
    subject = image(target)
    target.tag(subject if document == "subject" else image(target, "2"), referrers_tag(subject.digest))

    assert referrers(target, subject) == ()
    with pytest.raises(ReferrersTagTaken):
        attach(target, subject, _NOTE)


def test_a_subject_that_is_an_index_is_no_list_of_its_own_referrers(tmp_path):
    target = LayoutTarget(tmp_path, create=True)
    data = Index(manifests=(image(target),)).dump()
    subject = describe(data, media_types.OCI_INDEX)
    target.push(subject, partial(io.BytesIO, data))
    target.tag(subject, referrers_tag(subject.digest))

    assert referrers(target, subject) == ()


def test_a_referrer_is_taken_off_the_list(tmp_path):
    target = LayoutTarget(tmp_path, create=True)
    subject = image(target)
    gone, kept = (attach(target, subject, _NOTE, [blob(text)]) for text in (b"1", b"2"))

    unlist(target, subject, gone.digest)
    unlist(target, subject, gone.digest)

    assert referrers(target, subject) == (kept,)


def test_the_only_image_of_a_layout_stays_so_beside_its_referrers(tmp_path):
    target = LayoutTarget(tmp_path, create=True)
    subject = image(target)
    target.tag(subject, "v1")
    attach(target, subject, _NOTE)

    assert target.lookup("") == subject

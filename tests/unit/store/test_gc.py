import io
import os
import signal
import time
from functools import partial

import pytest

from envbuilder.digest import describe
from envbuilder.errors import EnvbuilderError
from envbuilder.oci import media_types
from envbuilder.oci.artifact import referrers_tag
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.store.copy import copy
from envbuilder.store.gc import KeepRules, collect, expired_tags, plan_gc
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.referrers import attach, read_referrer, referrers

_DAY = 24 * 3600.0
_NOTE = "application/vnd.example.note"


@pytest.fixture
def layout(tmp_path):
    return LayoutTarget(tmp_path / "layout", create=True)


def put(target, data, media_type="application/octet-stream"):
    what = describe(data, media_type)
    target.push(what, partial(io.BytesIO, data))
    return what


def image(target, text, tag=""):
    config = put(target, b'{"n":"%s"}' % text.encode(), media_types.OCI_CONFIG)
    layer = put(target, b"layer " + text.encode())
    what = put(target, Manifest(config=config, layers=(layer,)).dump(), media_types.OCI_MANIFEST)
    if tag:
        target.tag(what, tag)
    return what


def index(target, *children, tag=""):
    what = put(target, Index(manifests=children).dump(), media_types.OCI_INDEX)
    if tag:
        target.tag(what, tag)
    return what


def age(layout, days, *only):
    then = time.time() - days * _DAY
    for path in (layout.directory / "blobs/sha256").iterdir():
        if not only or path.name in {what.digest.hex for what in only}:
            os.utime(path, (then, then))


def blobs(layout):
    return {path.name for path in (layout.directory / "blobs/sha256").iterdir()}


def run(layout, **rules):
    return collect(layout, plan_gc(layout, KeepRules(**rules)))


def whole(layout, what):
    return copy(layout, what, MemoryTarget()).copied


def test_what_is_tagged_stays_with_all_that_it_names(layout):
    one, two = image(layout, "1"), image(layout, "2")
    root = index(layout, one, two, tag="v1")
    note = attach(layout, one, _NOTE, [(describe(b"n"), partial(io.BytesIO, b"n"))])
    age(layout, 30)
    before = blobs(layout)

    plan = plan_gc(layout, KeepRules())

    assert (plan.tags, plan.blobs) == ((), ())
    assert collect(layout, plan) == 0
    assert blobs(layout) == before
    assert whole(layout, root)
    assert read_referrer(layout, note, one)


def test_what_nothing_names_goes_after_the_grace_age(layout):
    kept = image(layout, "kept", "v1")
    lost = image(layout, "lost")
    age(layout, 30)
    young = image(layout, "young")

    plan = plan_gc(layout, KeepRules())

    assert len(plan.blobs) == 3
    assert plan.young == 3
    assert collect(layout, plan) == plan.size > 0
    assert whole(layout, kept)
    assert whole(layout, young)
    assert not layout.has(lost)


def test_a_shared_layer_stays_for_the_image_that_is_kept(layout):
    image(layout, "1", "old")
    config = put(layout, b'{"other":1}', media_types.OCI_CONFIG)
    shared = describe(b"layer 1")
    kept = put(layout, Manifest(config=config, layers=(shared,)).dump(), media_types.OCI_MANIFEST)
    layout.tag(kept, "new")
    age(layout, 30)

    run(layout, expire=("old",))

    assert whole(layout, kept)
    assert set(layout.tags()) == {"new"}


def test_an_image_takes_its_referrers_with_it(layout):
    subject = image(layout, "1", "old")
    other = image(layout, "2", "new")
    for what in (subject, other):
        attach(layout, what, _NOTE)
    age(layout, 30)

    plan = plan_gc(layout, KeepRules(expire=("old",)))
    collect(layout, plan)

    assert set(plan.tags) == {"old", referrers_tag(subject.digest)}
    assert set(layout.tags()) == {"new", referrers_tag(other.digest)}
    assert len(referrers(layout, other)) == 1
    assert not layout.has(subject)


def test_a_referrer_that_is_kept_keeps_its_subject(layout):
    subject = image(layout, "1")
    note = attach(layout, subject, _NOTE)
    layout.tag(note, "the-note")
    age(layout, 30)

    run(layout)

    assert whole(layout, subject)


def test_an_untagged_entry_of_another_tool_counts_as_a_reference(layout):
    what = image(layout, "1", "x")
    index_file = layout.directory / "index.json"
    index_file.write_bytes(
        index_file.read_bytes().replace(b'"annotations":{"org.opencontainers.image.ref.name":"x"},', b"")
    )
    age(layout, 30)

    run(layout)

    assert whole(layout, what)


def test_a_push_that_finds_an_old_blob_keeps_it(layout):
    """Between the plan and the collection a push was told that the blob is there, and does not send it."""
    blob = put(layout, b"old layer")
    age(layout, 30)
    plan = plan_gc(layout, KeepRules())
    assert layout.has(blob)

    assert collect(layout, plan) == 0
    assert layout.has(blob)


def test_what_was_tagged_since_the_plan_stays(layout):
    what = image(layout, "1")
    age(layout, 30)
    plan = plan_gc(layout, KeepRules())
    os.utime(layout.directory / "index.json")
    layout.tag(what, "late")
    age(layout, 30)

    assert collect(layout, plan) == 0
    assert whole(layout, what)


def test_a_damaged_index_stops_a_collection(layout):
    image(layout, "1", "v1")
    root = index(layout, image(layout, "2"), tag="v2")
    (layout.directory / "blobs/sha256" / root.digest.hex).write_bytes(b"{" * root.size)
    age(layout, 30)
    before = blobs(layout)

    with pytest.raises(EnvbuilderError):
        plan_gc(layout, KeepRules())
    assert blobs(layout) == before


def test_a_collection_that_is_killed_leaves_every_tag_whole(layout):
    for number in range(6):
        root = index(layout, image(layout, f"{number}"), tag=f"v{number}")
        attach(layout, root, _NOTE)
    age(layout, 30)
    plan = plan_gc(layout, KeepRules(expire=("v[0-4]",)))
    child = os.fork()
    if child == 0:
        collect(LayoutTarget(layout.directory), plan)
        os._exit(0)
    time.sleep(0.004)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    again = LayoutTarget(layout.directory)
    for what in again.tags().values():
        assert whole(again, what)
    collect(again, plan)
    age(again, 30)
    run(again)
    assert {tag for tag in again.tags() if tag.startswith("v")} == {"v5"}
    assert whole(again, again.lookup("v5"))


def test_tags_expire_by_pattern_age_and_number():
    ages = {
        "dev-1": 10 * _DAY,
        "dev-2": 5 * _DAY,
        "dev-3": 1 * _DAY,
        "prod-1": 90 * _DAY,
        "sha256-" + "0" * 64: 90 * _DAY,
    }

    def gone(**rules):
        return expired_tags(ages, KeepRules(**rules))

    assert gone() == ()
    assert gone(expire=("dev-*",)) == ("dev-1", "dev-2", "dev-3")
    assert gone(expire=("dev-*",), newest=2) == ("dev-1",)
    assert gone(expire=("dev-*",), older_than_s=4 * _DAY) == ("dev-1", "dev-2")
    assert gone(expire=("*",), keep=("prod-*",), older_than_s=4 * _DAY) == ("dev-1", "dev-2")
    assert gone(expire=("*",)) == ("dev-1", "dev-2", "dev-3", "prod-1")

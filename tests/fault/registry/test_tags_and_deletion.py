"""Tags in pages, registries that delete nothing, and collections that must not take what is in use."""

import json
import time
from dataclasses import replace

import pytest

from envbuilder.digest import InvalidJson
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index
from envbuilder.registry import gc
from envbuilder.registry.errors import BadAnswer, Denied
from envbuilder.registry.gc import collect_registry, plan_registry_gc
from envbuilder.registry.tags import CannotDelete
from envbuilder.store.gc import KeepRules
from envbuilder.store.referrers import attach, referrers
from envbuilder.store.target import NotFound
from envbuilder.testing.registry import Reply, header, refuse

_NOTE = "application/vnd.example.note"


def image(world, text, *tags):
    data = world.manifest(annotations={"n": text})
    what = world.push(data, media_types.OCI_MANIFEST)
    for tag in tags:
        world.target.tag(what, tag)
    return what


def index(world, *children, tag):
    what = world.push(Index(manifests=children).dump(), media_types.OCI_INDEX)
    world.target.tag(what, tag)
    return what


def run(world, **rules):
    plan = plan_registry_gc(world.target, KeepRules(**rules), now_s=time.time())
    collect_registry(world.target, plan)
    return plan


def test_all_pages_of_tags_are_read(world, monkeypatch):
    monkeypatch.setattr("envbuilder.registry.tags._PAGE", 2)
    image(world, "1", "e", "d", "c", "b", "a")

    assert world.target.tag_names() == ("a", "b", "c", "d", "e")
    assert len(world.registry.seen("GET", "/tags/list")) == 3


def test_a_registry_that_heeds_no_page_size_is_read_at_once(world):
    world.registry.paged = False
    image(world, "1", "b", "a")

    assert world.target.tag_names() == ("a", "b")


@pytest.mark.parametrize(
    "body", [b'{"tags":"x"}', b'{"tags":["../x"]}', b'{"tags":[1]}', b"[]", b'{"tags":[],"tags":[]}']
)
def test_a_malformed_list_of_tags_is_refused(world, body):
    world.registry.fault("GET", "/tags/list", lambda _r, reply: replace(reply, status=200, body=body))

    with pytest.raises(InvalidJson):
        world.target.tag_names()


def test_no_tags_may_be_null(world):
    world.registry.fault("GET", "/tags/list", lambda _r, reply: replace(reply, status=200, body=b'{"tags":null}'))

    assert world.target.tag_names() == ()


def test_all_pages_together_are_no_more_than_one_may_be(world, monkeypatch):
    monkeypatch.setattr("envbuilder.registry.tags._PAGE", 2)
    monkeypatch.setattr("envbuilder.registry.pages.MAX_TOTAL", 60)  # a page has about 30 bytes
    image(world, "1", "e", "d", "c", "b", "a")

    with pytest.raises(BadAnswer, match="want a body of at most"):
        world.target.tag_names()


@pytest.mark.parametrize("link", ["/v2/c/d/tags/list?last=a", "/v2/a/b/tags/../../../c/d/tags/list", "/v2/_catalog"])
def test_a_page_of_another_list_is_refused(world, link):
    """A token for one repository would be sent for another's tags, which would count as this one's."""
    image(world, "1", "a")
    world.registry.fault("GET", "/tags/list", header("Link", f'<{link}>; rel="next"'))

    with pytest.raises(BadAnswer, match="another host or path"):
        world.target.tag_names()


def test_a_page_of_tags_on_another_host_is_refused(world):
    image(world, "1", "a")
    world.registry.fault("GET", "/tags/list", header("Link", '<http://127.0.0.2:9/v2/a/b/tags/list>; rel="next"'))

    with pytest.raises(BadAnswer):
        world.target.tag_names()


@pytest.mark.parametrize(
    ("fault", "hint"),
    [
        (refuse(405, "UNSUPPORTED"), "by its digest"),
        (refuse(400, "DIGEST_INVALID"), "/a/b --expire v1'"),
        (refuse(409, "TAG_INVALID", "tag v1 is immutable"), "immutable or protected"),
        (refuse(412, "PRECONDITION", "matched an immutable rule of the project"), "immutable or protected"),
    ],
)
def test_why_a_tag_may_not_go_is_explained(world, fault, hint):
    what = image(world, "1", "v1")
    world.registry.fault("DELETE", "/manifests/v1", fault, instead=True)

    with pytest.raises(CannotDelete) as caught:
        world.target.delete_tag("v1")

    assert hint in caught.value.hint
    assert world.target.lookup("v1") == what


def test_a_deletion_that_is_not_ours_to_make_is_denied(world):
    image(world, "1", "v1")
    world.registry.fault("DELETE", "/manifests/v1", refuse(403, "DENIED"), instead=True)

    with pytest.raises(Denied):
        world.target.delete_tag("v1")


def test_a_tag_is_deleted_and_its_image_stays(world):
    what = image(world, "1", "v1", "v2")

    world.target.delete_tag("v1")

    assert world.target.tag_names() == ("v2",)
    assert world.target.has(what)
    with pytest.raises(NotFound):
        world.target.delete_tag("v1")


def test_a_manifest_that_another_tag_names_stays(world):
    what = image(world, "1", "dev", "prod")

    plan = run(world, expire=("dev",))

    assert (plan.tags, plan.manifests) == (("dev",), ())
    assert world.target.lookup("prod") == what


def test_a_manifest_that_another_index_names_stays(world):
    shared, own = image(world, "1"), image(world, "2")
    index(world, shared, own, tag="dev")
    kept = index(world, shared, tag="prod")

    plan = run(world, expire=("dev",))

    assert shared.digest not in dict(plan.manifests)
    assert world.target.has(shared)
    assert world.target.lookup("prod") == kept
    assert not world.target.has(own)


@pytest.mark.parametrize("api", [True, False])
def test_referrers_go_with_their_subject_and_only_then(world, api):
    world.registry.referrers = api
    gone, kept = image(world, "1", "dev"), image(world, "2", "prod")
    lost, stays = (attach(world.target, each, _NOTE, annotations={"n": str(each.digest)}) for each in (gone, kept))

    run(world, expire=("dev",))

    assert not world.target.has(gone)
    assert not world.target.has(lost)
    assert [each.digest for each in referrers(world.target, kept)] == [stays.digest]
    assert world.registry.tags("a/b") == (["prod"] if api else ["prod", f"sha256-{kept.digest.hex}"])


def test_the_subject_of_a_tagged_referrer_stays(world):
    subject = image(world, "1", "dev")
    note = attach(world.target, subject, _NOTE)
    world.target.tag(note, "note")

    run(world, expire=("dev",))

    assert world.target.has(subject)


def test_a_manifest_that_was_tagged_since_the_plan_stays(world):
    what = image(world, "1", "dev")
    plan = plan_registry_gc(world.target, KeepRules(expire=("dev",)), now_s=time.time())
    world.target.tag(what, "prod")

    assert collect_registry(world.target, plan) == 0
    assert world.target.lookup("prod") == what


def test_the_untagged_children_of_an_index_go_with_it_and_behind_it(world):
    one, two = image(world, "1"), image(world, "2")
    inner = world.push(Index(manifests=(two,)).dump(), media_types.OCI_INDEX)
    outer = index(world, one, inner, tag="dev")
    note = attach(world.target, one, _NOTE)
    kept = image(world, "3", "prod")

    plan = run(world, expire=("dev",))

    gone = [digest for digest, _ in plan.manifests]
    assert set(gone) >= {outer.digest, inner.digest, one.digest, two.digest, note.digest}
    order = [request.path.rpartition("/")[2] for request in world.registry.seen("DELETE")]
    for above, below in ((outer, inner), (inner, two), (outer, one), (one, note)):
        assert order.index(str(above.digest)) < order.index(str(below.digest))
    assert world.registry.tags("a/b") == ["prod"]
    assert {name for _, name in world.registry.manifests} == {"prod", str(kept.digest)}


@pytest.mark.parametrize("late", [False, True])
def test_a_manifest_that_an_index_names_since_the_plan_stays(world, late):
    """Also when that index comes while the collection runs."""
    shared, own = image(world, "1"), image(world, "2")
    old = index(world, shared, own, tag="dev")
    plan = plan_registry_gc(world.target, KeepRules(expire=("dev",)), now_s=time.time())

    def push_index(_request, reply):
        index(world, shared, tag="new")
        return reply

    if late:
        world.registry.fault("DELETE", str(old.digest), push_index, times=1)
    else:
        push_index(None, None)
    collect_registry(world.target, plan)

    assert world.target.has(shared)
    assert not world.target.has(own)
    assert not world.repository().has(old)


def test_a_tag_that_moved_since_the_plan_keeps_what_it_names_now(world):
    first, second = image(world, "1", "dev"), image(world, "2", "old")
    plan = plan_registry_gc(world.target, KeepRules(expire=("*",)), now_s=time.time())
    world.target.tag(second, "dev")

    collect_registry(world.target, plan)

    assert world.target.lookup("dev") == second
    assert {digest for digest, _ in plan.manifests} == {first.digest, second.digest}


def test_a_collection_asks_for_each_tag_once_and_not_for_each_manifest(world):
    for number in range(20):
        image(world, str(number), f"dev-{number}")
    image(world, "kept", "prod")
    plan = plan_registry_gc(world.target, KeepRules(expire=("dev-*",)), now_s=time.time())
    world.registry.requests.clear()

    assert collect_registry(world.target, plan) == 20
    assert len(world.registry.seen("GET", "/manifests/prod")) == 1


def test_an_image_of_unknown_age_is_not_old(world):
    image(world, "1", "dev")

    assert run(world, expire=("dev",), older_than_s=1.0).manifests == ()


def test_nothing_is_deleted_by_planning(world):
    image(world, "1", "dev")

    plan_registry_gc(world.target, KeepRules(expire=("*",)), now_s=time.time())

    assert json.dumps(world.registry.seen("DELETE")) == "[]"


def test_a_registry_that_makes_up_referrers_as_it_is_asked_is_not_followed_for_ever(world, monkeypatch):
    """Each has no subject, so that it has referrers of its own."""
    monkeypatch.setattr(gc, "_MAX_DOCUMENTS", 20)
    image(world, "1", "v1")
    made = iter(range(100, 300))

    def one_more(_request, _reply):
        data = world.manifest(annotations={"n": str(next(made))})
        what = world.registry.add_manifest("a/b", "x", data, media_types.OCI_MANIFEST)
        return Reply(headers={"Content-Type": media_types.OCI_INDEX}, body=Index(manifests=(what,)).dump())

    world.registry.fault("GET", "/referrers/", one_more, instead=True)

    with pytest.raises(BadAnswer, match="at most 20 manifests"):
        plan_registry_gc(world.target, KeepRules(expire=("v1",)), now_s=time.time())

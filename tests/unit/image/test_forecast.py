"""What a build would make and send: exactly where digests are known, and no guess where they are not."""

import io
from dataclasses import replace
from functools import partial

import pytest

from envbuilder.digest import Digest, describe
from envbuilder.image.assemble import assemble
from envbuilder.image.attached import COPIED, KINDS, copy_attached
from envbuilder.image.forecast import forecast
from envbuilder.image.predict import find_image, image_key, remember
from envbuilder.layer.record import dump_layer
from envbuilder.layer.tree import file
from envbuilder.lock.codec import digest
from envbuilder.lock.predicted import Predicted, PredictedLayer
from envbuilder.mount.startup.newest import copy_trace, newest_trace
from envbuilder.oci import media_types
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.referrers import attach
from envbuilder.testing.layers import layer_of
from envbuilder.testing.locks import SMALL

BUILT = [layer_of([file(name, b"1")], name=f"x/{name}") for name in ("debs-00", "wheels-00", "top")]
IMAGE = assemble(platform=SMALL.platform, layers=[each.layer for each in BUILT], lock_digest=digest(SMALL))
ROWS = tuple(
    PredictedLayer(
        id=each.layer.id,
        key=each.layer.plan_key,
        diff_id=each.layer.diff_id,
        digest=each.layer.blob.digest,
        size=each.layer.blob.size,
    )
    for each in BUILT
)


class Recipe:
    def __init__(self, layer):
        self.id, self.key = layer.id, layer.plan_key


PLANS = [Recipe(each.layer) for each in BUILT]
KEY = image_key(SMALL, PLANS)


def push(target, *layers):
    for each in layers:
        target.push(each.layer.blob, partial(io.BytesIO, each.blob))


def noted(target):
    """A manifest of records in ``target``, as ``Predicted`` names it: that it is there is all that is asked."""
    what = describe(b"{}", media_types.OCI_MANIFEST)
    target.push(what, partial(io.BytesIO, b"{}"))
    return what


@pytest.fixture
def empty(tmp_path):
    return LayoutTarget(tmp_path / "empty", create=True)


@pytest.fixture
def store(tmp_path):
    """A store that built the image, and attached to it what a build attaches."""
    made = LayoutTarget(tmp_path / "store", create=True)
    push(made, *BUILT)
    for each in BUILT:
        made.records.put(each.layer.plan_key.hex, dump_layer(each.layer))
    for what, data in IMAGE.blobs.items():
        made.push(what, partial(io.BytesIO, data))
    for kind in COPIED:
        attach(made, IMAGE.descriptor, kind, [(describe(kind.encode(), kind), partial(io.BytesIO, kind.encode()))])
    remember(made, KEY, IMAGE.descriptor)
    return made


def ways(found):
    return [each.way for each in found.layers]


def test_what_is_in_the_store_is_forecast_to_the_byte(store):
    there = MemoryTarget()
    push(there, BUILT[0])

    found = forecast(SMALL, PLANS, None, store, there)
    moved = copy(store, IMAGE.descriptor, there).copied_bytes + copy_attached(store, IMAGE.descriptor, there)

    layers = sum(each.blob.size for each in found.layers if each.way)
    # The empty config of the attached goes with each that is sent at the same time: {} is two bytes.
    assert found.beside is not None
    assert 0 <= moved - (layers + found.beside) <= 2 * len(COPIED)
    assert (ways(found), [each.build for each in found.layers]) == (["", "send", "send"], [False] * 3)


def test_a_trace_that_goes_along_is_forecast_until_it_is_there(store):
    there, image = MemoryTarget(), find_image(store, IMAGE.descriptor, SMALL, PLANS).image
    copy(store, IMAGE.descriptor, there)
    copy_attached(store, IMAGE.descriptor, there)
    bundle = describe(b"bundle" * 100, media_types.HOT_BUNDLE)
    attach(store, image.descriptor, media_types.TRACE_ARTIFACT, [(bundle, partial(io.BytesIO, b"bundle" * 100))])
    found = forecast(SMALL, PLANS, None, store, there, newest_trace)
    moved = copy_trace(store, image.descriptor, there)

    assert bundle.size < found.beside == moved
    assert forecast(SMALL, PLANS, None, store, there, newest_trace).beside == 0


def test_nothing_is_sent_where_all_of_it_is(store, empty):
    there = MemoryTarget()
    copy(store, IMAGE.descriptor, there)
    copy_attached(store, IMAGE.descriptor, there)
    known = Predicted(key=KEY, image=replace(IMAGE.descriptor, annotations={}), layers=ROWS)

    for found in (forecast(SMALL, PLANS, known, empty, there), forecast(SMALL, PLANS, None, store, there)):
        assert (ways(found), found.beside) == ([""] * 3, 0)
        assert not any(each.build for each in found.layers)


def test_what_an_image_lacks_of_its_documents_is_unknown_until_they_are_made(store, tmp_path):
    bare = LayoutTarget(tmp_path / "bare", create=True)
    copy(store, IMAGE.descriptor, bare)
    remember(bare, KEY, IMAGE.descriptor)

    assert forecast(SMALL, PLANS, None, bare, MemoryTarget()).beside is None


def test_of_layers_that_nobody_recorded_nothing_is_believed(empty):
    there = MemoryTarget()
    push(there, *BUILT)

    found = forecast(SMALL, PLANS, None, empty, there)

    assert ways(found) == ["unknown"] * 3
    assert [(each.build, each.blob) for each in found.layers] == [(True, None)] * 3
    assert found.beside is None


def test_a_layer_that_is_there_is_made_all_the_same_without_what_was_noted_of_it(empty):
    there = MemoryTarget()
    push(there, *BUILT[:2])
    known = Predicted(key=Digest.of(b"an older image"), image=IMAGE.descriptor, layers=ROWS)

    bare = forecast(SMALL, PLANS, known, empty, there)
    told = forecast(SMALL, PLANS, replace(known, records=noted(there)), empty, there)

    assert ways(bare) == ways(told) == ["", "", "send"]
    assert [each.build for each in bare.layers] == [True, True, True]
    assert [each.build for each in told.layers] == [False, False, True]


def test_a_layer_of_another_recipe_than_was_recorded_is_unknown(empty):
    there = MemoryTarget()
    push(there, *BUILT)
    old = replace(ROWS[1], key=Digest.of(b"another recipe"))
    known = Predicted(key=KEY, image=IMAGE.descriptor, layers=(ROWS[0], old, ROWS[2]), records=noted(there))

    assert ways(forecast(SMALL, PLANS, known, empty, there)) == ["", "unknown", ""]


def test_a_layer_that_the_registry_has_elsewhere_may_be_mounted(store):
    class Neighbourly(MemoryTarget):
        def may_mount(self, what):
            return what.digest == BUILT[1].layer.blob.digest

    assert ways(forecast(SMALL, PLANS, None, store, Neighbourly())) == ["send", "mount", "send"]


def test_without_a_target_nothing_is_sent(store, empty):
    assert ways(forecast(SMALL, PLANS, None, store, None)) == [""] * 3
    assert [each.build for each in forecast(SMALL, PLANS, None, empty, None).layers] == [True] * 3
    assert {*KINDS} < {*COPIED}

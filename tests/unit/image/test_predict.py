"""An image that is known before it is built: found whole, or not at all."""

import io
from dataclasses import replace

import pytest

from envbuilder.digest import Digest
from envbuilder.image.assemble import assemble
from envbuilder.image.predict import ForeignImage, find_image, image_key, prediction, recall, remember
from envbuilder.layer.tree import file
from envbuilder.lock.codec import digest
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.layers import layer_of
from envbuilder.testing.locks import SMALL

BUILT = [layer_of([file(name, b"1")], name=f"x/{name}") for name in ("debs-00", "top")]
IMAGE = assemble(platform=SMALL.platform, layers=[each.layer for each in BUILT], lock_digest=digest(SMALL))


class Recipe:
    def __init__(self, layer):
        self.id, self.key = layer.id, layer.plan_key


PLANS = [Recipe(each.layer) for each in BUILT]


def pushed(target, *, without=None):
    for each in BUILT:
        if each.layer.id != without:
            target.push(each.layer.blob, lambda data=each.blob: io.BytesIO(data))
    for what, data in IMAGE.blobs.items():
        target.push(what, lambda data=data: io.BytesIO(data))
    return target


def test_an_image_that_is_there_whole_is_found():
    known = find_image(pushed(MemoryTarget()), IMAGE.descriptor, SMALL, PLANS)

    assert known is not None
    assert prediction(Digest.of(b"key"), known).image == IMAGE.descriptor
    assert [layer.digest for layer in known.predicted] == [each.layer.blob.digest for each in BUILT]


def test_an_image_that_lacks_a_layer_is_not_found():
    assert find_image(pushed(MemoryTarget(), without="x/top"), IMAGE.descriptor, SMALL, PLANS) is None


def test_an_image_that_is_not_there_is_not_found():
    assert find_image(MemoryTarget(), IMAGE.descriptor, SMALL, PLANS) is None


def test_an_image_of_another_lock_is_refused():
    with pytest.raises(ForeignImage, match="want an image of the lock"):
        find_image(pushed(MemoryTarget()), IMAGE.descriptor, replace(SMALL, version="2"), PLANS)


def test_an_image_of_other_layers_is_refused():
    with pytest.raises(ForeignImage, match="layers"):
        find_image(pushed(MemoryTarget()), IMAGE.descriptor, SMALL, PLANS[:1])


def test_the_key_changes_with_lock_and_layers():
    keys = {image_key(SMALL, PLANS), image_key(replace(SMALL, version="2"), PLANS), image_key(SMALL, PLANS[:1])}

    assert len(keys) == 3


def test_a_store_remembers_what_a_key_became(tmp_path):
    store, key = LayoutTarget(tmp_path / "store", create=True), Digest.of(b"key")
    assert recall(store, key) is None

    remember(store, key, IMAGE.descriptor)

    assert recall(store, key) == IMAGE.descriptor


@pytest.mark.parametrize("record", [b"[]", b"not json", b'{"format":1}', b'{"format":2,"image":{}}'])
def test_a_record_of_another_kind_is_no_memory(tmp_path, record):
    store, key = LayoutTarget(tmp_path / "store", create=True), Digest.of(b"key")
    store.records.put(f"image-{key.hex}", record)

    assert recall(store, key) is None

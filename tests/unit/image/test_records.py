"""What was noted of layers, attached and adopted."""

import io
import json
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import pytest
import zstandard

from envbuilder.digest import Descriptor, Digest, DigestMismatch, describe
from envbuilder.image.records import PARTS, BadRecords, Notes, StoreBeside, adopt_records, attach_records
from envbuilder.layer.build import find_layer
from envbuilder.layer.computed import part_name
from envbuilder.layer.model import Layer
from envbuilder.layer.record import dump_layer
from envbuilder.layer.tree import Placed
from envbuilder.lock.model import Deb
from envbuilder.lock.predicted import Predicted, PredictedLayer
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Index, Manifest
from envbuilder.store.copy import copy
from envbuilder.store.copy_referrers import copy_referrers
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.store.records import RecordStore

KEY = Digest.of(b"a recipe")


@dataclass(frozen=True)
class Plan:
    id: str = "x/a"
    key: Digest = KEY


def push(target, data, media_type):
    what = describe(data, media_type)
    target.push(what, partial(io.BytesIO, data))
    return what


@pytest.fixture
def world(tmp_path):
    """A store that built a layer, its row of the prediction, its records, and a registry that has all of it."""
    store, there = LayoutTarget(tmp_path / "store", create=True), MemoryTarget()
    blob = push(store, b"layer", media_types.OCI_LAYER_TAR_ZSTD)
    placed = (Placed(path="etc/\udcff", mode=0o100644, size=5),)
    layer = Layer(id="x/a", blob=blob, diff_id=Digest.of(b"tar"), plan_key=KEY, tar_size=512, placed=placed)
    store.records.put(KEY.hex, dump_layer(layer))
    row = PredictedLayer(id="x/a", key=KEY, diff_id=layer.diff_id, digest=blob.digest, size=blob.size)
    config = push(store, b"{}", media_types.OCI_CONFIG)
    manifest = push(store, Manifest(config=config, layers=(blob,)).dump(), media_types.OCI_MANIFEST)
    root = push(store, Index(manifests=(manifest,)).dump(), media_types.OCI_INDEX)
    records = attach_records(store, (), root, [row], tmp_path / "cache")
    copy(store, root, there)
    copy_referrers(store, root, there)
    return layer, there, Predicted(key=KEY, image=root, layers=(row,), records=records)


def adopted(world, tmp_path):
    _, there, predicted = world
    fresh = LayoutTarget(tmp_path / "fresh", create=True)
    return fresh, adopt_records(there, predicted, [Plan()], fresh)


def test_a_layer_that_is_elsewhere_is_known_by_its_paths(world, tmp_path):
    fresh, told = adopted(world, tmp_path)

    assert find_layer(Plan(), fresh) is None
    assert find_layer(Plan(), StoreBeside(fresh.directory, told)) == world[0]


def test_what_one_project_was_told_of_a_layer_is_not_believed_by_builds_of_another(world, tmp_path):
    layer, there, predicted = world
    lie = replace(layer, placed=(Placed(path="etc/passwd", mode=0o104777, size=5),))
    value = {"layer": dump_layer(lie).decode(), "licences": "{}", "parts": {"libc6": "lies"}}
    hostile = replace(predicted, records=records_of(there, zstandard.compress(json.dumps(value).encode())))
    fresh, told = adopted((layer, there, hostile), tmp_path)
    beside = StoreBeside(fresh.directory, told)
    assert find_layer(Plan(), beside) == lie
    top = replace(predicted.layers[0], id="x/top", key=Digest.of(b"what lies over it"))
    beside.records.put(top.key.hex, dump_layer(replace(lie, plan_key=top.key)))
    Notes(beside, (), tmp_path / "cache").of(predicted.layers[0])

    fresh.push(layer.blob, partial(there.fetch, layer.blob))

    assert fresh.records.keys() == ()
    assert find_layer(Plan(), fresh) is None
    assert not (tmp_path / "cache" / PARTS).exists()


def test_what_a_plan_of_packages_became_beside_others_is_remembered(world, tmp_path):
    fresh, told = adopted(world, tmp_path)

    StoreBeside(fresh.directory, told).records.put(KEY.hex, dump_layer(world[0]))

    assert fresh.records.get(KEY.hex) == dump_layer(world[0])


def test_records_that_are_here_are_not_asked_for_again(world, tmp_path):
    _, there, predicted = world
    fresh, told = adopted(world, tmp_path)
    names = json.loads(there._content[predicted.records.digest])
    for each in names["layers"]:
        del there._content[Digest.parse(each["digest"])]

    assert adopt_records(there, predicted, [Plan()], fresh) == told


def test_nothing_is_adopted_of_a_layer_that_is_not_there_either(world, tmp_path):
    layer, there, predicted = world
    row = replace(predicted.layers[0], digest=Digest.of(b"gone"))

    assert adopted((layer, there, replace(predicted, layers=(row,))), tmp_path)[1].layers == frozenset()


def test_records_that_name_another_blob_than_was_predicted_are_not_believed(world, tmp_path):
    layer, there, predicted = world
    other = push(there, b"other", media_types.OCI_LAYER_TAR_ZSTD)
    row = replace(predicted.layers[0], digest=other.digest, size=other.size)

    assert adopted((layer, there, replace(predicted, layers=(row,))), tmp_path)[1].layers == frozenset()


def test_without_records_layers_are_made_here(world, tmp_path):
    layer, there, predicted = world
    gone = Descriptor(media_type=media_types.OCI_MANIFEST, digest=Digest.of(b"gone"), size=4)

    assert adopted((layer, there, replace(predicted, records=None)), tmp_path)[1].layers == frozenset()
    assert adopted((layer, there, replace(predicted, records=gone)), tmp_path)[1].layers == frozenset()


def records_of(there, data):
    """The manifest of records whose one blob is ``data``."""
    blob = replace(push(there, data, media_types.RECORDS), annotations={media_types.PLAN_KEY: str(KEY)})
    config = push(there, b"{}", media_types.OCI_EMPTY)
    return push(there, Manifest(config=config, layers=(blob,)).dump(), media_types.OCI_MANIFEST)


@pytest.mark.parametrize(
    "data",
    [
        b"no frame",
        zstandard.compress(b"no JSON"),
        zstandard.compress(json.dumps({"layer": 1, "licences": "{}", "parts": {}}).encode()),
        zstandard.compress(json.dumps({"layer": "", "licences": "{}", "parts": []}).encode()),
        zstandard.ZstdCompressor(write_content_size=False).compress(b"{}"),
        zstandard.compress(b"0" * ((256 << 20) + 1)),
    ],
    ids=["no frame", "no JSON", "a number", "a list", "no size", "too much"],
)
def test_records_of_another_form_are_refused(world, tmp_path, data):
    layer, there, predicted = world

    with pytest.raises(BadRecords):
        adopted((layer, there, replace(predicted, records=records_of(there, data))), tmp_path)


def test_records_that_a_registry_lost_are_done_without(world, tmp_path):
    layer, there, predicted = world
    records = records_of(there, b"lost")
    del there._content[Digest.of(b"lost")]

    assert adopted((layer, there, replace(predicted, records=records)), tmp_path)[1].layers == frozenset()


def test_records_that_a_registry_changed_are_refused(world, tmp_path):
    layer, there, predicted = world
    there._content[predicted.records.digest] = bytes(predicted.records.size)

    with pytest.raises(DigestMismatch):
        adopted((layer, there, predicted), tmp_path)


def noted(world, store, cache, layer, locks=()):
    """What ``store`` attaches, which has the layer of the world's as ``layer`` says, and the image."""
    _, there, predicted = world
    copy(there, predicted.image, store)
    store.records.put(KEY.hex, dump_layer(layer))
    return attach_records(store, locks, predicted.image, predicted.layers, cache)


def test_all_who_made_a_layer_note_the_same_of_it_whatever_they_call_it(world, tmp_path):
    other = LayoutTarget(tmp_path / "other", create=True)

    assert noted(world, other, tmp_path / "cache2", replace(world[0], id="y/b")) == world[2].records


def test_what_is_noted_of_a_layer_while_others_are_made_is_what_is_attached_in_the_end(world, tmp_path):
    layer, there, predicted = world
    other = LayoutTarget(tmp_path / "other", create=True)
    other.push(layer.blob, partial(there.fetch, layer.blob))
    other.records.put(KEY.hex, dump_layer(layer))

    early = Notes(other, (), tmp_path / "cache2").of(predicted.layers[0], layer)

    assert other.has(early)
    assert noted(world, other, tmp_path / "cache2", layer) == predicted.records
    manifest = json.loads(there._content[predicted.records.digest])
    assert [each["digest"] for each in manifest["layers"]] == [str(early.digest)]


def test_a_layer_of_other_bytes_than_the_image_has_is_not_noted(world, tmp_path):
    other = LayoutTarget(tmp_path / "other", create=True)
    layer = replace(world[0], blob=push(other, b"other bytes", media_types.OCI_LAYER_TAR_ZSTD))

    assert noted(world, other, tmp_path / "cache2", layer) is None


def test_what_others_attached_is_not_taken_for_what_was_noted_here(world, tmp_path):
    _, there, predicted = world
    fresh = LayoutTarget(tmp_path / "fresh", create=True)
    copy(there, predicted.image, fresh)
    copy_referrers(there, predicted.image, fresh)

    assert attach_records(fresh, (), predicted.image, predicted.layers, tmp_path / "cache2") is None


def test_a_package_that_is_not_remembered_leaves_its_image_without_records(world, tmp_path):
    deb = Deb(
        name="bc", version="1", architecture="amd64", layer="x/a", source="bc", file="pool/bc.deb", size=1,
        digest=Digest.of(b"deb"),
    )  # fmt: skip
    lock = SimpleNamespace(debs=(deb,))
    memory, other = RecordStore(tmp_path / "cache2" / PARTS), LayoutTarget(tmp_path / "other", create=True)

    assert noted(world, other, tmp_path / "cache2", world[0], [lock]) is None
    memory.put(part_name(deb), b"{}")
    assert noted(world, other, tmp_path / "cache2", world[0], [lock]) not in {None, world[2].records}

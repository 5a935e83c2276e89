"""What a node with one lock's image fetches for another's."""

from dataclasses import replace

from envbuilder.digest import Descriptor, Digest
from envbuilder.lock.diff import difference, pieces
from envbuilder.lock.predicted import Predicted, PredictedLayer
from envbuilder.oci import media_types
from envbuilder.testing.locks import SMALL, wheel

BUMPED = replace(SMALL, wheels=(wheel("numpy", "2", 30, layer="x/wheels-00"), SMALL.wheels[1]))


def compared(before, after):
    return difference(before, after, pieces(before), pieces(after))


def test_nothing_is_fetched_for_the_same_lock():
    found = compared(SMALL, SMALL)

    assert (found.artifacts, found.fetch) == ((), 0)
    assert {layer.state for layer in found.layers} == {"same"}


def test_a_bump_changes_its_layer_and_the_computed_one():
    found = compared(SMALL, BUMPED)

    assert {layer.id: layer.state for layer in found.layers} == {
        "x/debs-00": "same",
        "x/wheels-00": "changed",
        "x/top": "changed",
    }
    (change,) = found.artifacts
    assert (change.kind, change.name, change.before, change.after) == ("wheel", "numpy", "1", "2")
    assert (change.size_before, change.size_after) == (10, 30)


def test_a_size_that_nobody_built_is_an_estimate():
    found = compared(SMALL, BUMPED)

    assert not found.exact
    assert found.fetch == 2.2 * 30 + 2.2 * 10  # pure wheels: their modules are there twice


def test_sizes_that_were_built_are_exact():
    keys = {layer: Digest.of(layer.encode()) for layer in BUMPED.layers}
    layers = [
        PredictedLayer(id=name, key=key, diff_id=key, digest=key, size=1000 + number)
        for number, (name, key) in enumerate(keys.items())
    ]
    image = Descriptor(media_type=media_types.OCI_INDEX, digest=Digest.of(b"i"), size=1)
    built = pieces(BUMPED, keys=keys, predicted=Predicted(key=image.digest, image=image, layers=tuple(layers)))

    found = difference(SMALL, BUMPED, (), built)

    assert found.exact
    assert found.fetch == 1000 + 1001 + 1002


def test_a_computed_layer_is_estimated_at_what_it_was():
    key = Digest.of(b"before")
    image = Descriptor(media_type=media_types.OCI_INDEX, digest=key, size=1)
    top = PredictedLayer(id="x/top", key=key, diff_id=key, digest=key, size=40_000)

    found = {piece.id: piece for piece in pieces(BUMPED, predicted=Predicted(key=key, image=image, layers=(top,)))}

    assert (found["x/top"].size, found["x/top"].exact) == (40_000, False)


def test_a_layer_that_is_gone_costs_nothing():
    gone = replace(SMALL, layers=("x/wheels-00", "x/top"), debs=())

    found = compared(SMALL, gone)

    assert [layer.state for layer in found.layers if layer.id == "x/debs-00"] == ["removed"]
    assert [(each.kind, each.after) for each in found.artifacts] == [("deb", "")]


def test_the_same_bytes_under_another_name_are_not_fetched():
    moved = replace(
        SMALL,
        layers=("x/debs-01", "x/wheels-00", "x/top"),
        debs=tuple(replace(deb, layer="x/debs-01") for deb in SMALL.debs),
    )

    assert {layer.id: layer.state for layer in compared(SMALL, moved).layers}["x/debs-01"] == "moved"

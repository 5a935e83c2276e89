"""Files of predicted digests: byte-stable, refused when edited, compared by key."""

from dataclasses import replace

import pytest

from envbuilder.digest import Descriptor, Digest
from envbuilder.lock.predicted import (
    InvalidPrediction,
    Predicted,
    PredictedLayer,
    differences,
    dump,
    layer_differences,
    load,
)
from envbuilder.oci import media_types

LAYERS = tuple(
    PredictedLayer(
        id=f"x/{name}",
        key=Digest.of(name.encode()),
        diff_id=Digest.of(b"d" + name.encode()),
        digest=Digest.of(b"b" + name.encode()),
        size=7,
    )
    for name in ("one", "two")
)
MADE = Predicted(
    key=Digest.of(b"key"),
    image=Descriptor(media_type=media_types.OCI_INDEX, digest=Digest.of(b"image"), size=739),
    layers=LAYERS,
)


def test_what_is_written_is_read():
    assert load(dump(MADE), source="x") == MADE


def test_a_file_of_another_format_predicts_nothing():
    assert load(dump(MADE).replace(b"format = 1", b"format = 2"), source="x") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"format = 1",
        b"format = 1\nkey = 3",
        dump(MADE) + b"\n",
        dump(MADE).replace(b"size = 7", b"size = -7"),
        dump(MADE).replace(b"size = 7", b'size = "7"'),
        dump(MADE).replace(b"size = 7", b"size = true"),
        dump(MADE).replace(b"sha256:", b"sha512:", 1),
        b"#" * (2 << 20),
    ],
)
def test_a_file_that_nobody_wrote_so_is_refused(data):
    with pytest.raises(InvalidPrediction):
        load(data, source="x")


def test_a_layer_of_the_same_key_and_other_bytes_is_named():
    wrong = replace(LAYERS[0], digest=Digest.of(b"other"))

    lines = differences(MADE, replace(MADE, layers=(wrong, LAYERS[1])))

    assert lines == (f"x/one: want {LAYERS[0].digest} (7 bytes), got {wrong.digest} (7 bytes)",)


def test_a_layer_of_another_key_contradicts_nothing():
    assert layer_differences(MADE, [replace(LAYERS[0], key=Digest.of(b"new"), digest=Digest.of(b"other"))]) == ()


def test_one_recipe_may_have_two_names():
    assert layer_differences(MADE, [replace(LAYERS[0], id="y/one")]) == ()


def test_another_image_of_the_same_layers_and_key_is_told():
    other = replace(MADE, image=replace(MADE.image, digest=Digest.of(b"other")))

    assert "of the same layers" in differences(MADE, other)[0]
    assert differences(MADE, replace(other, key=Digest.of(b"new"))) == ()

"""No lock makes an image of too many layers, of too large ones, or of one that holds up the rest."""

from dataclasses import replace

import pytest

from envbuilder.layer import limits
from envbuilder.layer.build import LocalFiles, build_layer
from envbuilder.layer.limits import LayerTooLarge, Lopsided, TooDeep, check_balance
from envbuilder.layer.plan import plan
from envbuilder.layer.tree import file
from envbuilder.lock.model import Lock
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.layers import layer_of
from envbuilder.testing.locks import SMALL, deb, wheel

GB = 1_000_000_000
PYTHON = tuple(
    deb(name, "3.13.5-2", layer="x/debs-00", source="python3.13")
    for name in (
        "python3.13-minimal",
        "libpython3.13-minimal",
        "libpython3.13-stdlib",
        "python3.13",
        "libexpat1",
        "zlib1g",
    )
)
LOCK = replace(SMALL, debs=(*PYTHON, *SMALL.debs))


def locked(layers: int, size: int = 10) -> Lock:
    wheels = tuple(wheel(f"w{i:03}", size=size, layer=f"x/w{i:03}") for i in range(layers - 2))
    return replace(LOCK, layers=("x/debs-00", *(each.layer for each in wheels), "x/top"), wheels=wheels)


def test_an_image_of_127_layers_is_planned_and_one_of_128_is_not():
    assert len(plan([locked(127)])) == 127
    with pytest.raises(TooDeep, match="want at most 127, got 128") as caught:
        plan([locked(128)])

    assert caught.value.hint


def test_a_layer_of_more_than_10_gb_of_packages_is_not_planned():
    assert plan([locked(4, size=10 * GB)])
    with pytest.raises(
        LayerTooLarge, match=r"layer x/w000: want at most 10000000000 bytes.*, got 10000000001"
    ) as caught:
        plan([locked(4, size=10 * GB + 1)])

    assert caught.value.hint


def test_a_layer_that_grows_too_large_as_it_is_made_leaves_nothing_in_the_store(tmp_path, monkeypatch):
    class Plan:
        id, key, artifacts = "x/grown", SMALL.spec_digest, ()

        def entries(self, artifacts, *, cache):
            return iter([file("a", b"1")])

    store = LayoutTarget(tmp_path / "store", create=True)
    monkeypatch.setattr(limits, "MAX_LAYER_SIZE", 10)

    with pytest.raises(LayerTooLarge, match="x/grown"):
        build_layer(Plan(), LocalFiles({}), store, cache=tmp_path)

    assert list((store.directory / "blobs/sha256").iterdir()) == []


@pytest.mark.parametrize(
    ("sizes", "packages", "fits"),
    [
        ((3 * GB, GB, GB), 2, False),
        ((3 * GB, GB, GB), 1, True),  # one package cannot be split
        ((2 * GB, GB, GB), 2, True),
        ((GB // 2, 1, 1), 2, True),  # half a gigabyte holds up nobody
    ],
)
def test_no_layer_of_several_packages_unpacks_for_longer_than_all_others_together(sizes, packages, fits):
    layers = [
        replace(layer_of([file("a", b"1")], name=f"x/{number}").layer, tar_size=size)
        for number, size in enumerate(sizes)
    ]
    parts = {"x/0": packages, "x/1": 1, "x/2": 9}

    if fits:
        check_balance("x", layers, parts)
        return
    with pytest.raises(
        Lopsided, match=f"layer x/0: want no more than the {2 * GB} bytes.*, got {3 * GB} of 2 packages"
    ):
        check_balance("x", layers, parts)

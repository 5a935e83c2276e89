"""A layer is made once: the store remembers it under the key of its plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.layer.build import LocalFiles, build_layer, find_layer, has_layer
from envbuilder.layer.tree import Entry, file, symlink
from envbuilder.store.layout import LayoutTarget

NOTHING = LocalFiles({})
KEY = Digest.of(b"recipe")


@dataclass(frozen=True)
class Plan:
    """A plan of two entries that needs no artefacts."""

    id: str = "test/one"
    key: Digest = KEY
    artifacts: tuple[()] = ()

    def entries(self, artifacts: LocalFiles, *, cache: Path) -> Iterator[Entry]:
        yield file("a/data", b"x" * 10_000)
        yield symlink("a/link", "data")


@pytest.fixture
def store(tmp_path):
    return LayoutTarget(tmp_path / "store", create=True)


def test_a_layer_is_stored_under_the_digest_of_its_bytes(store, tmp_path):
    layer = build_layer(Plan(), NOTHING, store, cache=tmp_path)

    assert Digest.of(store.file_of(layer.blob).read_bytes()) == layer.blob.digest


def test_a_layer_is_found_again_with_all_its_paths(store, tmp_path):
    layer = build_layer(Plan(), NOTHING, store, cache=tmp_path)

    assert find_layer(Plan(), store) == layer
    assert has_layer(Plan(), store)


def test_a_layer_of_another_recipe_is_not_found(store, tmp_path):
    build_layer(Plan(), NOTHING, store, cache=tmp_path)
    other = Plan(key=Digest.of(b"another recipe"))

    assert find_layer(other, store) is None
    assert not has_layer(other, store)


def test_a_layer_whose_bytes_are_gone_is_not_found(store, tmp_path):
    layer = build_layer(Plan(), NOTHING, store, cache=tmp_path)
    store.file_of(layer.blob).unlink()

    assert find_layer(Plan(), store) is None
    assert not has_layer(Plan(), store)


@pytest.mark.parametrize("record", [b"", b"[]", b"{}", b'{"format": 1}', b"\xff"])
def test_a_record_that_is_none_is_not_believed(store, record):
    store.records.put(KEY.hex, record)

    assert find_layer(Plan(), store) is None
    assert not has_layer(Plan(), store)

"""A layer is made once: the store remembers it under the key of its plan."""

import gc
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.layer.build import LocalFiles, build_layer, build_layers, find_layer, has_layer
from envbuilder.layer.tree import Entry, file, symlink
from envbuilder.layer.wheel_file import BadWheel
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


@pytest.mark.slow  # starts build processes
def test_what_is_known_is_told_while_the_rest_is_built_and_unreadable_paths_are_made_anew(store, tmp_path):
    known, damaged, new = (
        Plan(id=f"test/{name}", key=Digest.of(name.encode())) for name in ("known", "damaged", "new")
    )
    for plan in (known, damaged):
        build_layer(plan, NOTHING, store, cache=tmp_path)
    whole = store.records.get(damaged.key.hex)
    store.records.put(damaged.key.hex, whole.replace(b'"a/link"', b"1,2,3"))
    told = []

    def finished(layer, reused):
        told.append((layer.id, reused))

    layers = build_layers([new, damaged, known], store, NOTHING, cache=tmp_path, jobs=1, finished=finished)

    assert [layer.id for layer in layers] == ["test/new", "test/damaged", "test/known"]
    assert told == [("test/known", True), ("test/new", False), ("test/damaged", False)]
    assert store.records.get(damaged.key.hex) == whole


@dataclass(frozen=True)
class Told(Plan):
    """A plan that says which process asked for its entries, and raises what it is told to."""

    asked: list[int] = field(default_factory=list)
    error: BaseException | None = None

    def entries(self, artifacts: LocalFiles, *, cache: Path) -> Iterator[Entry]:
        self.asked.append(os.getpid())
        yield from super().entries(artifacts, cache=cache)
        if self.error is not None:
            raise self.error


def children():
    return {pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def test_a_layer_that_is_all_there_is_to_do_needs_no_process_of_its_own(store, tmp_path):
    plan = Told()
    (layer,) = build_layers([plan], store, NOTHING, cache=tmp_path, jobs=2)

    assert plan.asked == [os.getpid()]
    assert find_layer(plan, store) == layer


@pytest.mark.parametrize("error", [KeyboardInterrupt, BadWheel("damaged")])
def test_a_layer_that_fails_here_leaves_nothing_behind(store, tmp_path, error):
    before = children()
    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        build_layers([Told(error=error)], store, NOTHING, cache=tmp_path, jobs=2)

    assert not list((store.directory / "envbuilder/incoming").iterdir())
    assert children() == before
    assert gc.isenabled()

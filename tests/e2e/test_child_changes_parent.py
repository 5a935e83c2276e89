"""A child with another version of what its parent has: the parent's layers as they are, and none of the old files seen."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.image.build import build_image
from envbuilder.layer.build import find_layer
from envbuilder.layer.merge import merge
from envbuilder.layer.plan import plan
from envbuilder.lock.changes import changed
from envbuilder.lock.check import stale_reasons
from envbuilder.lock.codec import digest, dump, load
from envbuilder.lock.fetch import ArtifactCache
from envbuilder.lock.model import Parent, Wheel
from envbuilder.lock.partition import assign
from envbuilder.spec.model import EnvSpec
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.index import tiny_wheel

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class WithTiny:
    """The artefacts of ``hello``, and one of our own."""

    cache: ArtifactCache
    digest: Digest
    tiny: Path

    def file(self, artifact):
        return self.tiny if artifact.digest == self.digest else self.cache.file(artifact)


@pytest.fixture(scope="module")
def parent():
    return load((ROOT / "lockfiles/hello/linux-x86_64.lock.toml").read_bytes(), source="hello")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    name, data = tiny_wheel("pip", "99")
    file = tmp_path_factory.mktemp("tiny") / name
    file.write_bytes(data)
    return file


@pytest.fixture(scope="module")
def child(parent, tiny):
    """``hello`` with another pip, as ``make_lock`` would have it."""
    data = tiny.read_bytes()
    pip = Wheel(name="pip", version="99", file=tiny.name, digest=Digest.of(data), size=len(data), layer="")
    wheels = tuple(pip if wheel.name == "pip" else wheel for wheel in parent.wheels)
    done = assign("child", wheels, parent.debs, parent=parent)
    spec = EnvSpec(name="child", version="1", extends="hello")
    return replace(
        parent,
        name="child",
        spec_digest=spec.digest,
        layers=done.layers,
        wheels=done.wheels,
        debs=done.debs,
        partition=done.partition,
        parent=Parent(name="hello", lock_digest=digest(parent), changed=changed(parent.wheels, wheels)),
    )


@pytest.fixture(scope="module")
def built(parent, child, tiny, hello_cli, tmp_path_factory):
    store = LayoutTarget(hello_cli.store)
    cache = Path(os.environ.get("ENVBUILDER_CACHE", "/var/cache/envbuilder"))
    artifacts = WithTiny(ArtifactCache(cache, indexes={}, mirrors={}), child.wheels[-1].digest, tiny)
    artifacts = replace(artifacts, digest=Digest.of(tiny.read_bytes()))
    scratch = tmp_path_factory.mktemp("scratch")
    folders = {"hello": ROOT / "images/hello", "child": scratch}
    return store, build_image([parent, child], store, artifacts, cache=scratch, folders=folders, jobs=2, tag="child-1")


def test_the_lock_survives_its_file_and_says_what_changed(parent, child):
    assert load(dump(child), source="child") == child
    assert [(each.name, each.after) for each in child.parent.changed] == [("pip", "99")]
    assert stale_reasons(EnvSpec(name="child", version="1", extends="hello"), child.platform, child, parent) == ()


def test_the_parents_layers_are_a_prefix_byte_for_byte(parent, hello, built):
    _, done = built
    layers = [layer.blob.digest for layer in done.image.layers]

    assert [str(each) for each in layers[: len(parent.layers)]] == [each["digest"] for each in hello.plain["layers"]]
    assert [layer.id for layer in done.image.layers[len(parent.layers) :]] == [
        "child/removed",
        "child/wheels-00",
        "child/top",
    ]


def test_nothing_of_the_old_package_is_seen_and_all_of_the_others_is(parent, child, built):
    store, _ = built
    layers = [find_layer(each, store) for each in plan([parent, child])[:-1]]
    before = {path for path, _ in merge([layer.placed for layer in layers[: len(parent.layers)]]).walk()}
    after = {path for path, _ in merge([layer.placed for layer in layers]).walk()}
    site = "opt/env/lib/python3.13/site-packages"

    assert {path for path in after if path.startswith((f"{site}/pip", "opt/env/bin/pip"))} == {
        f"{site}/pip.py",
        f"{site}/pip.bin",
        f"{site}/pip-99.dist-info",
        *(f"{site}/pip-99.dist-info/{name}" for name in ("INSTALLER", "METADATA", "RECORD", "WHEEL")),
    }
    gone = before - after
    assert gone
    assert all(path.startswith((f"{site}/pip", "opt/env/bin/pip")) for path in gone)

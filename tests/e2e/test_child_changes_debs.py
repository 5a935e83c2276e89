"""A child that drops and changes Debian packages of its parent: the tree that an image made alone has, file by file."""

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import zstandard

from envbuilder.digest import Digest
from envbuilder.image.build import build_image
from envbuilder.layer.build import find_layer
from envbuilder.layer.merge import merge
from envbuilder.layer.plan import plan
from envbuilder.layer.top import TopPlan
from envbuilder.layer.tree import file
from envbuilder.lock.changes import changed
from envbuilder.lock.codec import digest, dump, load
from envbuilder.lock.fetch import ArtifactCache
from envbuilder.lock.model import CudaAxis, Parent
from envbuilder.lock.partition import assign
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.artifacts import locked_wheel, make_wheel
from envbuilder.testing.debs import deb_of, make_deb

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
#: Of ``hello``: what compiles, the loader's cache, and what is dropped and changed. It takes no longer than it must.
BASE = {"libc-bin", "libc6", "libexpat1", "libpython3.13-minimal", "python3.13-minimal", "tzdata", "zlib1g"}
#: An alternative, a library, conffiles.
DROPPED, CHANGED = {"mawk", "libgmp10"}, "netbase"
NETBASE = make_deb(
    [file("etc/protocols", b"ip 0 IP\n"), file("usr/share/netbase/new", b"9")],
    name=CHANGED,
    version="9",
    fields={"Maintainer": "A <a@example.org>", "Description": "another", "Multi-Arch": "foreign"},
    members={"conffiles": "/etc/protocols\n"},
)


def cuda_wheel(name, *paths):
    files = {path: b"\x7fELF" if ".so" in path else b"" for path in paths}
    return make_wheel(name, files=files)


#: Two pieces of a toolkit that share include/crt: /usr/local/cuda links to one of them, or has a folder of both.
RUNTIME = cuda_wheel("nvidia-one", "nvidia/cu13/include/crt/one.h", "nvidia/cu13/lib/libone.so.13")
OTHER = cuda_wheel(
    "nvidia-two", "nvidia/two/include/crt/two.h", "nvidia/two/include/two.h", "nvidia/two/lib/libtwo.so.2"
)


@dataclass(frozen=True)
class Files:
    """The artefacts of ``hello``, and our own."""

    cache: ArtifactCache
    own: dict[Digest, Path]

    def file(self, artifact):
        return self.own.get(artifact.digest) or self.cache.file(artifact)


@dataclass(frozen=True)
class World:
    """A store, its artefacts, and a way to build locks in it."""

    store: LayoutTarget
    files: Files
    scratch: Path

    def tree(self, *locks):
        """Path -> mode, owner, link and bytes of what a container of the last of ``locks`` sees."""
        folders = {lock.name: self.scratch for lock in locks}
        image = build_image(
            locks, self.store, self.files, cache=self.scratch / "cache", folders=folders, jobs=2, tag=locks[-1].name,
            documents=False,
        ).image  # fmt: skip
        layers = image.layers
        tars = [self._tar(layer) for layer in layers]
        seen = {}
        for path, node in merge([layer.placed for layer in layers]).walk():
            placed = node.placed
            data = tars[node.layer][placed.offset : placed.offset + placed.size] if stat.S_ISREG(placed.mode) else b""
            seen[path] = (placed.mode, placed.uid, placed.gid, placed.link, data)
        return seen

    def _tar(self, layer):
        with self.store.fetch(layer.blob) as stream:
            return zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True).read()


@pytest.fixture(scope="module")
def world(hello_cli, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("world")
    cache = ArtifactCache(Path(os.environ.get("ENVBUILDER_CACHE", "/var/cache/envbuilder")), indexes={}, mirrors={})
    own = {}
    for data in (NETBASE, RUNTIME, OTHER):
        path = scratch / Digest.of(data).hex
        path.write_bytes(data)
        own[Digest.of(data)] = path
    return World(LayoutTarget(scratch / "store", create=True), Files(cache, own), scratch)


@pytest.fixture(scope="module")
def hello():
    lock = load((ROOT / "lockfiles/hello/linux-x86_64.lock.toml").read_bytes(), source="hello")
    debs = tuple(deb for deb in lock.debs if deb.name in {*BASE, *DROPPED, CHANGED})
    return alone(replace(lock, wheels=(), debs=debs), "parent")


def standing_on(parent, name, wheels, debs):
    """A child of ``parent`` with exactly these packages, as ``make_lock`` would have it."""
    done = assign(name, wheels, debs, parent=parent)
    there = [*parent.wheels, *parent.debs]
    return replace(
        parent,
        name=name,
        layers=done.layers,
        wheels=done.wheels,
        debs=done.debs,
        partition=done.partition,
        parent=Parent(name=parent.name, lock_digest=digest(parent), changed=changed(there, [*wheels, *debs])),
    )


def alone(lock, name):
    """The same packages without a parent."""
    done = assign(name, lock.wheels, lock.debs)
    return replace(lock, name=name, layers=done.layers, wheels=done.wheels, debs=done.debs, parent=None)


def with_debs(lock):
    """The packages of ``lock`` without those that are dropped and with the changed one."""
    kept = [deb for deb in lock.debs if deb.name not in {*DROPPED, CHANGED}]
    return sorted([*kept, deb_of(NETBASE, name=CHANGED, version="9")], key=lambda deb: deb.name)


@pytest.fixture(scope="module")
def child(hello):
    return standing_on(hello, "child", hello.wheels, with_debs(hello))


@pytest.fixture(scope="module")
def seen(world, hello, child):
    return world.tree(hello, child)


def test_the_lock_says_which_debian_packages_are_not_the_parents(child):
    assert load(dump(child), source="child") == child
    assert [(each.name, each.after, each.deb) for each in child.parent.changed] == [
        ("libgmp10", "", True),
        ("mawk", "", True),
        ("netbase", "9", True),
    ]


def test_the_child_is_the_tree_of_an_image_made_alone(world, child, seen):
    made = world.tree(alone(child, "alone"))

    assert {path for path in seen if seen[path] != made.get(path)} == set()
    assert made.keys() - seen.keys() == set()


def test_what_the_parent_computed_for_the_dropped_packages_is_gone(seen):
    status = seen["var/lib/dpkg/status"][-1].decode()

    assert "etc/alternatives/awk" not in seen
    assert "usr/bin/awk" not in seen
    assert "Package: mawk\n" not in status
    assert "Package: netbase\n" in status
    assert b"libgmp.so.10" not in seen["etc/ld.so.cache"][-1]
    assert seen["etc/protocols"][-1] == b"ip 0 IP\n"
    assert "etc/services" not in seen
    assert not [path for path in seen if "/mawk" in path or "libgmp" in path]


def test_the_parents_layers_are_as_they_were(hello, child):
    plans, theirs = plan([hello, child]), plan([hello])

    assert [each.key for each in plans[: len(theirs)]] == [each.key for each in theirs]
    assert [each.id for each in plans[len(theirs) :]] == ["child/removed", "child/debs-00", "child/top"]


def test_a_child_with_another_interpreter_leaves_the_parents_layers_as_they_are(hello):
    debs = [
        replace(deb, version="9", digest=Digest.of(b"9")) if deb.name == "python3.13-minimal" else deb
        for deb in hello.debs
    ]
    plans, theirs = plan([hello, standing_on(hello, "child", hello.wheels, debs)]), plan([hello])

    assert [each.key for each in plans[: len(theirs)]] == [each.key for each in theirs]


@pytest.mark.parametrize(("first", "then"), [("both", "one"), ("one", "both"), ("both", "none")])
def test_the_links_of_usr_local_cuda_are_those_of_the_wheels_that_are_there(world, hello, first, then):
    wheels = {
        "none": [],
        "one": [locked_wheel("nvidia-one", RUNTIME)],
        "both": [locked_wheel("nvidia-one", RUNTIME), locked_wheel("nvidia-two", OTHER)],
    }
    axis = CudaAxis(toolkit="13.0", minimum_driver="580.65.06")
    base = replace(hello, wheels=(), cuda=axis)
    had = [replace(wheel, layer="") for wheel in wheels[first]]
    has = [replace(wheel, layer="") for wheel in wheels[then]]
    parent = alone(replace(base, wheels=tuple(had)), f"had-{first}")
    kid = standing_on(parent, f"has-{then}-{first}", has, parent.debs)

    seen = world.tree(parent, kid)
    made = world.tree(alone(replace(kid, wheels=tuple(has)), f"alone-{then}"))

    assert {path for path in seen if seen[path] != made.get(path)} == set()
    assert made.keys() - seen.keys() == set()
    top = find_layer(
        next(each for each in plan([parent]) if isinstance(each, TopPlan)).on([], world.scratch), world.store
    )
    assert top is not None
    assert any(placed.path.startswith("usr/local/cuda/") for placed in top.placed)

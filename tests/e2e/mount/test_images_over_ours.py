"""Images that others built over one of ours (``FROM``): ours start lazily as they are, what lies over them is one tree."""

import io
import os
import shutil
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from envbuilder.digest import Digest, describe
from envbuilder.errors import UnavailableError
from envbuilder.image.inspect import open_image
from envbuilder.layer.tree import file, symlink
from envbuilder.mount.foreign.based import base_places, proved_layers
from envbuilder.mount.mount import open_mount
from envbuilder.mount.settings import MountSettings
from envbuilder.mount.startup.hot import page_root
from envbuilder.mount.startup.hotbuild import build_bundle
from envbuilder.mount.startup.traces import attach_trace
from envbuilder.oci import media_types
from envbuilder.oci.config import ImageConfig
from envbuilder.oci.manifest import Manifest, parse_document
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import RegistryReference
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.mirrored import MirroredTarget
from envbuilder.store.referrers import referrers
from envbuilder.testing.foreign import foreign_tar, gzip_layer, member
from envbuilder.testing.layers import layer_of, push_image
from envbuilder.testing.nodes import BIG
from envbuilder.testing.sources import SwitchedSource
from envbuilder.testing.traces import trace_of_reads
from envbuilder.testing.waiting import until

pytestmark = pytest.mark.slow

X86 = Platform("x86_64")
#: Of two layers: names that are replaced, hidden and linked to, and files whose end only the metadata hold.
ENDS = {f"data/end{size}": bytes([size % 251]) * size for size in (512, 3072, 3584, 4608)}
OURS = [
    layer_of(
        [
            file("data/big", BIG),
            file("data/gone", b"gone\n"),
            file("data/kept", b"kept\n"),
            file("old/file", b"hidden\n"),
            symlink("link", "data/kept"),
            *(file(name, data) for name, data in ENDS.items()),
        ],
        name="one",
    ),
    layer_of([file("data/second", BIG[::-1]), file("data/replaced", b"below\n")], name="two"),
]
OVER = gzip_layer(
    foreign_tar(
        [
            member("data/.wh.gone", b""),
            member("data/replaced", b"above\n", uid=7),
            member("old/"),
            member("old/.wh..wh..opq", b""),
            member("old/new", b"new\n"),
            member("hi", b"hi\n", mode=0o755),
            member("hard", type=tarfile.LNKTYPE, linkname="hi"),
            member("soft", type=tarfile.SYMTYPE, linkname="data/big", mode=0o777),
        ]
    )
)


def built_over(target, image, notes):
    """What a builder makes of ``FROM image``: its layers and one more; manifest and config, pushed to ``target``."""
    plain = parse_document(image.blobs[image.manifest], source="test")
    layers = (*(replace(layer, annotations={}) for layer in plain.layers), OVER.descriptor)
    diff_ids = (*(built.layer.diff_id for built in OURS), Digest.of(OVER.tar))
    config = ImageConfig(platform=X86, diff_ids=diff_ids).dump()
    manifest = Manifest(config=describe(config, media_types.OCI_CONFIG), layers=layers, annotations=notes).dump()
    root = describe(manifest, media_types.OCI_MANIFEST)
    contents = [(built.layer.blob, built.blob) for built in OURS]
    contents += [(OVER.descriptor, OVER.blob), (describe(config, media_types.OCI_CONFIG), config), (root, manifest)]
    for what, data in contents:
        target.push(what, partial(io.BytesIO, data))
    return root


def notes_of(image, name="localhost/base:1"):
    """What builders note: the base's annotations, as buildah copies them; its digest and name; neither."""
    plain = parse_document(image.blobs[image.manifest], source="test")
    base = {media_types.BASE_DIGEST: str(image.manifest.digest), media_types.BASE_NAME: name}
    return {"copied": {**plain.annotations}, "named": base, "both": {**plain.annotations, **base}, "none": {}}


@pytest.fixture
def place(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounts are for root")
    target = LayoutTarget(tmp_path / "layout", create=True)
    settings = MountSettings(state_dir=tmp_path / "state", cache_dir=tmp_path / "cache", wait_limit_s=20.0)
    return target, SwitchedSource(tmp_path / "layout", tmp_path / "switches"), settings


def tree(root):
    found = {}
    for folder, folders, names in os.walk(root):
        for path in (Path(folder, name) for name in (*folders, *names)):
            there = path.lstat()
            data = bytes(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            more = () if path.is_dir() else (there.st_nlink, int(there.st_mtime))
            found[os.path.relpath(path, root)] = (there.st_mode, there.st_uid, *more, data)
    return found


@pytest.mark.parametrize("kind", ["copied", "named", "both"])
@pytest.mark.parametrize("mode", ["erofs", "loop", "fuse"])
def test_what_lies_over_ours_is_one_tree_with_it_and_little_is_fetched(place, mode, kind):
    target, source, settings = place
    image = push_image(target, OURS)
    child = open_image(source, built_over(target, image, notes_of(image)[kind]), X86)
    with open_mount(child, source, replace(settings, mode="unpack")) as mounted:
        want = tree(mounted.directory)
    for _ in range(2):
        shutil.rmtree(settings.cache_dir / "chunks", ignore_errors=True)
        with open_mount(child, source, replace(settings, mode=mode)) as mounted:
            names = {path.name for path in (mounted.directory / "data").iterdir()}
            assert (mounted.directory / "data/replaced").read_bytes() == b"above\n"
            few = mounted.counters().fetched_chunks
            got = tree(mounted.directory)
        assert mounted.how.endswith("lazy")
        assert few <= 1
        assert got == want
        assert "gone" not in names

    assert {name: got[name][-1] for name in ENDS} == ENDS
    assert "old/file" not in got


def test_without_a_note_of_its_base_an_image_is_pulled(place):
    target, source, settings = place
    image = push_image(target, OURS)
    child = open_image(source, built_over(target, image, notes_of(image)["none"]), X86)
    with open_mount(child, source, settings) as mounted:
        assert (mounted.directory / "data/big").read_bytes() == BIG
    assert mounted.how == "erofs direct"


@pytest.mark.parametrize("lie", ["other layers", "other bytes", "gone", "nonsense"])
def test_a_note_that_is_not_true_costs_nothing_but_speed(place, lie):
    target, source, settings = place
    image = push_image(target, OURS)
    other = push_image(target, OURS[::-1])
    notes = notes_of(other if lie == "other layers" else image)["both"]
    if lie == "nonsense":
        notes = dict.fromkeys(notes, "sha256:x ../../etc 1")
    child = open_image(source, built_over(target, image, notes), X86)
    file = target.directory / "blobs/sha256" / image.erofs_manifest.digest.hex
    if lie == "gone":
        file.unlink()
    if lie == "other bytes":
        file.write_bytes(file.read_bytes().replace(b"erofs", b"erofz"))
    with open_mount(child, source, settings) as mounted:
        assert (mounted.directory / "data/big").read_bytes() == BIG
        assert (mounted.directory / "hi").read_bytes() == b"hi\n"
    assert mounted.how == "erofs direct"


def test_a_base_in_another_repository_of_the_registry_is_found_and_its_trace_serves(place, registry, tmp_path):
    target, source, settings = place
    image = push_image(target, OURS, tag="base")
    base = open_image(target, image.descriptor, X86)
    with open_mount(base, source, settings, record=True) as mounted:
        with (mounted.directory / "data/second").open("rb") as file:
            file.read(2 << 20)
        trace = trace_of_reads(base, mounted.folder.reads)
    trace = build_bundle(trace, base.manifest.layers, source, tmp_path / "bundle", jobs=1)
    shutil.rmtree(settings.cache_dir)
    with RegistryClient() as client:
        theirs = RegistryTarget(RegistryReference(registry.host, "over/base"), client, writable=True)
        for what, data in {**{built.layer.blob: built.blob for built in OURS}, **image.blobs}.items():
            theirs.push(what, partial(io.BytesIO, data))
        theirs.tag(image.descriptor, "1")
        attach_trace(theirs, base, trace, tmp_path / "bundle")
        mine = RegistryTarget(RegistryReference(registry.host, "over/mine"), client, writable=True)
        root = built_over(mine, image, notes_of(image, "a.name.of.before/over/base:1")["both"])
        place_of_mine = MirroredTarget(RegistryTarget(RegistryReference(registry.host, "over/mine"), client), ())
        child = open_image(place_of_mine, root, X86)
        with open_mount(child, place_of_mine, settings) as mounted:
            with (mounted.directory / "data/second").open("rb") as file:
                assert file.read(2 << 20) == BIG[::-1][: 2 << 20]
            counted = mounted.counters()
            assert (mounted.directory / "hi").read_bytes() == b"hi\n"

    assert mounted.how == "erofs lazy"
    assert mounted.traced
    assert counted.hot_bytes == (tmp_path / "bundle").stat().st_size
    assert not referrers(mine, root)


def test_a_base_that_does_not_answer_is_looked_for_again_by_the_next_start(place, monkeypatch):
    target, source, settings = place
    image = push_image(target, OURS)
    child = open_image(source, built_over(target, image, notes_of(image)["both"]), X86)

    def away(*_):
        raise UnavailableError("registry: no answer in time")

    with monkeypatch.context() as patched:
        patched.setattr("envbuilder.mount.foreign.image.read_based", away)
        with open_mount(child, source, settings) as mounted:
            assert (mounted.directory / "data/big").read_bytes() == BIG
        pulled = mounted.how
    with open_mount(child, source, settings) as mounted:
        assert (mounted.directory / "data/big").read_bytes() == BIG

    assert (pulled, mounted.how) == ("erofs direct", "erofs lazy")


def test_a_record_of_its_own_start_has_a_bundle_of_what_its_base_proves(place, tmp_path):
    target, source, settings = place
    image = push_image(target, OURS)
    child = open_image(source, built_over(target, image, notes_of(image)["both"]), X86)
    with open_mount(child, source, settings, record=True) as mounted:
        (mounted.directory / "hi").read_bytes()
        with (mounted.directory / "data/second").open("rb") as file:
            file.read(1 << 20)
        trace = trace_of_reads(child, mounted.folder.reads)
    layers = proved_layers(child.manifest, source)
    mine = trace.provable([page_root(layer) for layer in layers])
    made = build_bundle(mine, layers, source, tmp_path / "bundle", jobs=1)
    attach_trace(target, child, made, tmp_path / "bundle")
    shutil.rmtree(settings.cache_dir / "chunks")
    with open_mount(child, source, settings) as mounted:
        until(lambda: mounted.counters().pushed_pages == made.pages)
        assert (mounted.directory / "hi").read_bytes() == b"hi\n"
        assert (mounted.directory / "data/second").read_bytes() == BIG[::-1]

    assert {pages.device for pages in trace.ranges} >= {1, 2}
    assert {pages.device for pages in made.ranges} <= {0, 1}
    assert trace.provable([None] * 3) is trace


def test_no_other_registry_than_the_image_s_is_asked_for_a_base():
    notes = {media_types.BASE_NAME: "other.example:5000/a/c:1"}
    manifest = Manifest(config=describe(b"{}", media_types.OCI_CONFIG), layers=(), annotations=notes)
    with RegistryClient() as client:
        target = RegistryTarget(RegistryReference("127.0.0.1:1", "a/b"), client)

        for source in (target, MirroredTarget(target, ())):
            assert [place.name for place in base_places(manifest, source)] == ["127.0.0.1:1/a/c", "127.0.0.1:1/a/b"]

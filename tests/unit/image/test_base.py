"""Images of others as bases: what is read of them, what is refused, and what an image over one is."""

import io
import stat
import tarfile
from dataclasses import replace
from functools import partial

import pytest

from envbuilder.digest import Digest, DigestMismatch, describe
from envbuilder.image.attached import attached
from envbuilder.image.base import UnfitBase, hold_base, read_base
from envbuilder.image.base_packages import BasePackage, base_packages
from envbuilder.image.build import build_image
from envbuilder.image.choice import NoSuchPlatform
from envbuilder.image.inspect import open_image
from envbuilder.image.verify import verify_image
from envbuilder.layer.base import BasePlan, InTheWay
from envbuilder.layer.foreign_tar import BadLayer
from envbuilder.lock.model import LockedFile
from envbuilder.oci import media_types
from envbuilder.oci.platform import Platform
from envbuilder.paths import UnsafePath
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.memory import MemoryTarget
from envbuilder.testing.bases import elf, link, push_base, system
from envbuilder.testing.foreign import ForeignBlob, foreign_tar, gzip_layer, member
from envbuilder.testing.index import tiny_wheel
from envbuilder.testing.layers import layer_of, push_image
from envbuilder.testing.locks import SMALL, wheel

X86 = Platform("x86_64")
IMAGE = f"registry.example/base@{Digest.of(b'')}"


@pytest.fixture
def read(tmp_path):
    """Reads an image of the layers that it is given."""
    store = LayoutTarget(tmp_path / "store", create=True)

    def read(*layers, python="3.12", **options):
        there = MemoryTarget()
        what = push_base(there, layers, **options)
        return read_base(there, what, X86, image=IMAGE, python=python, store=store, cache=tmp_path / "cache")

    return read


def test_a_base_is_read_without_running_it(read):
    process = {"User": "1000:100", "WorkingDir": "/data", "Entrypoint": ["/init"], "Labels": {"a": "b"}}
    found = read(system(), [member("etc/hello", b"hi")], process=process)
    base = found.system.base

    assert (found.system.name, found.system.interpreter, found.glibc) == ("ubuntu-24.04", "3.12.3", "2.39")
    assert (found.system.image, base.python) == (IMAGE, "/usr/bin/python3.12")
    assert (base.user, base.working_dir, base.entrypoint) == ("1000:100", "/data", ("/init",))
    assert (base.env, base.labels) == ((("PATH", "/usr/local/bin:/usr/bin"),), (("a", "b"),))
    assert [layer.by for layer in base.layers] == ["COPY 0 /", "COPY 1 /"]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([system(python="")], r"want Python 3\.12 on PATH, got none$"),
        ([system(python="3.11.9")], r"got none; no Python 3\.12: /usr/bin/python3\.11$"),
        ([system(), [member("usr/bin/.wh.python3.12", b"")]], r"want Python 3\.12 on PATH, got none$"),
        ([system(), [member("usr/lib/python3.12/.wh..wh..opq", b"")]], "without its standard library"),
        ([system(machine=183)], "is not for linux/x86_64"),
        ([system(), [member("usr/lib/x86_64-linux-gnu/libc.so.6", elf("musl libc"))]], r"want a glibc \(libc\.so\.6\)"),
        ([system(), [member("opt/env/"), member("opt/env/x", b"")]], "it has /opt/env, where the packages"),
        ([system(), [member(".wh.opt", b"")], [link("opt", "usr")]], "/opt is no directory"),
        ([system(), [member(".wh.opt", b"")], [member("opt", b"")]], "/opt is no directory"),
    ],
)
def test_what_packages_cannot_lie_over_is_refused_with_the_reason(read, layers, message):
    with pytest.raises(UnfitBase, match=message):
        read(*layers)


def test_an_interpreter_is_found_on_the_images_own_path_behind_links_and_in_its_libpython(read):
    own = [
        member("srv/python/bin/python3.12", elf("no version here"), mode=0o755),
        link("usr/local/bin/python3.12", "../../../srv/python/bin/python3"),
        link("srv/python/bin/python3", "python3.12"),
        member("srv/python/lib/libpython3.12.so.1.0", elf("/build/Python-3.12.11"), mode=0o755),
        member("srv/python/lib/python3.12/os.py", b""),
    ]
    found = read(system(), own).system

    assert (found.base.python, found.interpreter) == ("/srv/python/bin/python3.12", "3.12.11")


def test_an_image_for_another_machine_or_of_ours_is_no_base(read, tmp_path):
    with pytest.raises(NoSuchPlatform):
        read(system(), architecture="arm64")
    ours, store = MemoryTarget(), LayoutTarget(tmp_path / "x", create=True)
    made = push_image(ours, [layer_of([])])
    with pytest.raises(UnfitBase, match=r"want Python 3\.12 on PATH"):
        read_base(ours, made.descriptor, X86, image=IMAGE, python="3.12", store=store, cache=tmp_path)


def hard(name, target):
    return member(name, b"", type=tarfile.LNKTYPE, linkname=target)


@pytest.mark.parametrize(
    ("members", "error", "message"),
    [
        ([member("../../etc/passwd", b"x")], UnsafePath, "not a path inside the tree"),
        ([member("a/../../b", b"x")], UnsafePath, "not a path inside the tree"),
        ([hard("a", "../b")], UnsafePath, "not a path inside the tree"),
        ([hard("a", "nothing")], BadLayer, "a hard link to 'nothing'"),
        ([link("a", "/etc"), member("a/x", b"x")], BadLayer, "'a/x' lies below 'a', which is no directory"),
        ([member("d/.wh.", b"")], BadLayer, "a whiteout of nothing"),
        ([member("d/.wh...", b"")], BadLayer, "a whiteout of nothing"),
        ([member("a", b"x", uid=-1)], BadLayer, "an owner that no kernel takes"),
        ([member("a", b"", type=b"Z")], BadLayer, "a tar entry of type"),
    ],
)
def test_a_layer_that_climbs_or_makes_no_tree_is_refused(read, members, error, message):
    with pytest.raises(error, match=message):
        read(system(), members)


def test_a_layer_that_is_not_the_one_that_its_image_names_is_refused(read, tmp_path):
    blob = gzip_layer(foreign_tar(system()))
    with pytest.raises(BadLayer, match="want diff_id sha256:0000"):
        read(blob, diff_ids=["sha256:" + "0" * 64])
    with pytest.raises(BadLayer, match=r"got .application/vnd\.in-toto"):
        read(replace(blob, media_type="application/vnd.in-toto+json"))
    broken = ForeignBlob(blob=blob.blob[:-20], tar=blob.tar, media_type=blob.media_type)
    with pytest.raises(BadLayer):
        read(broken)

    class Lying(MemoryTarget):
        def fetch(self, what):
            return io.BytesIO(b"x" * what.size) if what.digest == blob.descriptor.digest else super().fetch(what)

    there = Lying()
    what = push_base(there, [blob])
    store = LayoutTarget(tmp_path / "other", create=True)
    with pytest.raises(DigestMismatch):
        read_base(there, what, X86, image=IMAGE, python="3.12", store=store, cache=tmp_path)


def test_a_device_has_the_files_of_its_layer_with_owners_times_links_and_whiteouts(tmp_path):
    store = LayoutTarget(tmp_path / "store", create=True)
    tar = foreign_tar(
        [
            member("b/", mode=0o1777, uid=3, gid=4, mtime=99),
            member("b/data", b"12345", mode=0o4711, uid=1, pax_headers={"SCHILY.xattr.user.a": "v"}),
            hard("a", "b/data"),
            member("deep/without/parents", b"x"),
            member("deep/.wh.gone", b""),
            member("twice", b"1"),
            member("twice", b"22"),
        ]
    )
    blob = gzip_layer(tar)
    store.push(blob.descriptor, partial(io.BytesIO, blob.blob))
    (layer,) = hold_base([plan_of(blob)], store, never, cache=tmp_path)
    placed = {each.path: each for each in layer.placed}

    assert [*placed] == ["a", "b", "b/data", "deep/.wh.gone", "deep/without/parents", "twice"]
    assert stat.filemode(placed["b"].mode) + str(placed["b"].mtime_s) == "drwxrwxrwt99"
    assert (placed["b/data"].mode & 0o7777, placed["b/data"].uid, placed["b/data"].mtime_s) == (
        0o4711,
        1,
        1_700_000_000,
    )
    assert placed["a"].offset == placed["b/data"].offset > 0
    assert (placed["b/data"].xattrs, placed["twice"].size) == ((("user.a", b"v"),), 2)
    assert layer.listed.blob.digest == blob.descriptor.digest != layer.blob.digest
    assert hold_base([plan_of(blob)], store, never, cache=tmp_path)[0] == layer


def plan_of(blob):
    from envbuilder.lock.model import BaseLayer

    layer = BaseLayer(
        digest=blob.descriptor.digest,
        size=len(blob.blob),
        media_type=blob.media_type,
        diff_id=describe(blob.tar).digest,
    )
    return BasePlan(id="x/base-00", layer=layer)


def never():
    raise AssertionError("the base was fetched")


def test_packages_of_a_base_are_those_that_it_says_are_installed(tmp_path):
    store = LayoutTarget(tmp_path / "store", create=True)
    less = [member("var/lib/dpkg/status.d/base", b"Package: base-files\nVersion: 13\nArchitecture: amd64\n")]
    blobs = [gzip_layer(foreign_tar(each)) for each in (system(), less)]
    for blob in blobs:
        store.push(blob.descriptor, partial(io.BytesIO, blob.blob))
    layers = hold_base([plan_of(blob) for blob in blobs], store, never, cache=tmp_path)

    assert base_packages(layers, store) == (
        BasePackage(kind="deb", name="base-files", version="13", architecture="amd64"),
        BasePackage(kind="deb", name="bash", version="5.2.21-2ubuntu4", architecture="amd64"),
        BasePackage(kind="wheel", name="dbus-python", version="1.3.2"),
    )


class Wheels:
    def __init__(self, folder):
        name, data = tiny_wheel("tiny", "1")
        self.path = folder / name
        self.path.write_bytes(data)
        self.wheel = replace(wheel("tiny", layer="x/wheels-00"), file=name, digest=Digest.of(data), size=len(data))

    def file(self, artifact):
        assert artifact == self.wheel
        return self.path


@pytest.fixture
def over(tmp_path):
    """Builds an image over a base into a store of its own; ``layers`` are the base's."""
    wheels, there = Wheels(tmp_path), MemoryTarget()

    def build(name, *, layers=None, files=(), **changes):
        store = LayoutTarget(tmp_path / name, create=True)
        process = {"User": "7", "Entrypoint": ["/init"], "Env": ["A=1", "PATH=/sbin"], "Labels": {"k": "v"}}
        what = push_base(there, layers or [system(), [member("etc/two", b"2")]], process=process)
        found = read_base(there, what, X86, image=IMAGE, python="3.12", store=store, cache=tmp_path / "cache")
        lock = replace(
            SMALL,
            python=replace(SMALL.python, version="3.12", tag="cp312"),
            suite="",
            base=(),
            debs=(),
            wheels=(wheels.wheel,),
            system=found.system,
            bytecode=False,
            layers=(*(f"x/base-{n:02}" for n in range(len(found.system.base.layers))), "x/wheels-00", "x/top"),
            files=tuple(LockedFile(source="f", path=path, mode=0o644, digest=Digest.of(b"mine")) for path in files),
            **changes,
        )
        (tmp_path / "f").write_bytes(b"mine")
        options = {"cache": tmp_path / "cache", "folders": {"x": tmp_path}, "jobs": 1, "tag": "x-1"}
        return store, build_image([lock], store, wheels, base=lambda: there, **options).image, wheels

    return build


@pytest.mark.slow
def test_an_image_over_a_base_lists_its_layers_as_they_are_and_keeps_its_config(over, tmp_path):
    store, image, wheels = over("one")
    _, again, _ = over("two")
    opened = open_image(store, image.descriptor, X86)
    lists = opened.manifest.layers

    assert again.descriptor == image.descriptor
    assert [layer.media_type for layer in lists[:2]] == [media_types.OCI_LAYER_TAR_GZIP] * 2
    assert [each.digest for each in lists[:2]] == [layer.theirs.blob.digest for layer in image.layers[:2]]
    assert [each.annotations[media_types.DEVICE_OF] for each in opened.lazy.devices[:2]] == [
        str(each.digest) for each in lists[:2]
    ]
    assert (opened.config.user, opened.config.entrypoint, opened.config.command) == ("7", ("/init",), ("python3",))
    assert opened.config.env == {"A": "1", "PATH": "/opt/env/bin:/sbin", "VIRTUAL_ENV": "/opt/env"}
    assert opened.config.labels["k"] == "v"
    assert opened.config.history[:2] == ("COPY 0 /", "COPY 1 /")
    assert [row.same for row in verify_image(store, opened, wheels, tmp_path / "again", cache=tmp_path, jobs=1)] == [
        True
    ] * 4
    ((_, sbom),) = attached(store, image.descriptor, media_types.SPDX)
    assert b"pkg:deb/ubuntu/bash@5.2.21-2ubuntu4?arch=amd64&distro=ubuntu-24.04" in sbom
    assert b"Package: gone" not in sbom


@pytest.mark.slow
def test_directories_of_the_base_stay_as_they_are_and_the_prefix_is_over_its_interpreter(over):
    store, image, _ = over("one")
    top = image.layers[-1]
    placed = {each.path: each for each in top.placed}

    assert (placed["opt"].mode & 0o7777, placed["opt"].uid) == (0o750, 7)
    assert placed["opt/env/bin/python3.12"].link == "/usr/bin/python3.12"
    assert {path for path in placed if not path.startswith("opt")} == set()
    with store.fetch(top.blob) as stored:
        assert stored.read()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("lib/mine", r"x: /lib/mine: the base has /lib as a link to usr/lib"),
        ("etc/two/mine", r"x: /etc/two/mine: the base has a file at /etc/two"),
        ("usr/bin", r"x: /usr/bin: there is a directory"),
    ],
)
def test_a_file_of_the_project_that_would_hide_a_part_of_the_base_is_refused(over, path, message):
    with pytest.raises(InTheWay, match=message):
        over("one", files=[path])


@pytest.mark.slow
def test_a_file_of_the_project_may_replace_one_of_the_base(over):
    _, image, _ = over("one", files=["etc/two"])

    assert "etc/two" in {each.path for each in image.layers[-1].placed}

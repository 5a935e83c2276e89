"""skopeo, umoci and Debian's docker-registry accept what our store and our client write, and the other way round."""

import json

import pytest

from envbuilder.digest import Digest
from envbuilder.layer.tree import file
from envbuilder.oci.reference import RegistryReference
from envbuilder.proc import run
from envbuilder.registry.client import RegistryClient
from envbuilder.registry.target import RegistryTarget
from envbuilder.store.archive import ArchiveTarget, ArchiveWriter
from envbuilder.store.copy import copy
from envbuilder.store.layout import LayoutTarget
from envbuilder.testing.layers import layer_of, push_image
from envbuilder.testing.servers import docker_registry

pytestmark = pytest.mark.slow


def image(target, tag):
    """An image of two zstd layers with its EROFS manifest; the descriptor of its index."""
    layers = [layer_of([file("base", b"text" * 5000)]), layer_of([file("top", b"more")])]
    push_image(target, layers, tag=tag)
    return target.lookup(tag)


@pytest.fixture
def layout(tmp_path):
    return LayoutTarget(tmp_path / "layout", create=True)


@pytest.fixture
def registry(tmp_path, require_tool):
    require_tool("docker-registry")
    with docker_registry(tmp_path / "registry") as registry, RegistryClient() as client:
        yield lambda name: RegistryTarget(RegistryReference(registry.host, name), client, writable=True)


@pytest.fixture
def skopeo(require_tool, tmp_path):
    program = require_tool("skopeo")

    def call(verb, *arguments):
        options = ["--all", "--preserve-digests", "--src-tls-verify=false", "--dest-tls-verify=false"]
        if verb == "inspect":
            options = ["--tls-verify=false"]
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
        return run([program, "--insecure-policy", verb, *options, *arguments], env=environment).stdout

    return call


def test_skopeo_copies_what_we_pushed_to_a_directory_and_back_with_the_same_digest(layout, registry, skopeo, tmp_path):
    root = image(layout, "v1")
    target = registry("a/b")
    copy(layout, root, target, tag="v1")

    skopeo("copy", f"docker://{target.name}:v1", f"dir:{tmp_path}/dir")
    skopeo("copy", f"dir:{tmp_path}/dir", f"docker://{target.name}:back")

    assert Digest.of((tmp_path / "dir/manifest.json").read_bytes()) == root.digest
    assert target.lookup("back") == root == target.lookup("v1")
    assert json.loads(skopeo("inspect", f"docker://{target.name}:v1"))["Digest"] == str(root.digest)


def test_we_pull_what_skopeo_pushed(layout, registry, skopeo, tmp_path):
    root = image(layout, "v1")
    target = registry("skopeo/pushed")
    skopeo("copy", f"oci:{layout.directory}:v1", f"docker://{target.name}:v1")
    pulled = LayoutTarget(tmp_path / "pulled", create=True)

    copy(target, target.lookup("v1"), pulled, tag="v1")

    assert pulled.lookup("v1") == root


def test_skopeo_reads_our_archive_and_we_read_its(layout, skopeo, tmp_path):
    root = image(layout, "v1")
    copy(layout, root, ArchiveWriter(tmp_path / "ours.tar"), tag="v1")

    skopeo("copy", f"oci-archive:{tmp_path}/ours.tar:v1", f"oci-archive:{tmp_path}/theirs.tar:v2")

    theirs = ArchiveTarget(tmp_path / "theirs.tar")
    assert theirs.lookup("v2") == root
    back = LayoutTarget(tmp_path / "back", create=True)
    copy(theirs, root, back)
    assert back.has(root)


def test_skopeo_writes_into_our_layout_and_keeps_our_tags(layout, skopeo, tmp_path):
    root = image(layout, "v1")

    skopeo("copy", f"oci:{layout.directory}:v1", f"oci:{layout.directory}:v2")

    again = LayoutTarget(layout.directory)
    assert set(again.tags()) == {"v1", "v2"}
    assert again.lookup("v1") == again.lookup("v2") == root


def test_a_second_push_moves_nothing(layout, registry):
    root = image(layout, "v1")
    target = registry("a/b")
    copy(layout, root, target, tag="v1")

    again = copy(layout, root, target, tag="v1")

    assert (again.copied, again.copied_bytes, again.skipped) == (0, 0, 8)


def test_a_blob_of_another_repository_is_mounted_by_a_real_registry(layout, registry, tmp_path):
    root = image(layout, "v1")
    first = registry("first/one")
    copy(layout, root, first, tag="v1")
    second = RegistryTarget(
        RegistryReference(first.name.partition("/")[0], "second/one"),
        first._client,
        writable=True,
        mount_from=["first/one"],
    )

    report = copy(layout, root, second, tag="v1")

    assert (report.copied, report.skipped) == (3, 5)
    assert second.lookup("v1") == root


def test_umoci_lists_our_tags(layout, require_tool):
    root = image(layout, "v1")
    layout.tag(root, "v2")

    listed = run([require_tool("umoci"), "list", "--layout", layout.directory]).stdout.decode().split()

    assert listed == ["v1", "v2"]


def test_umoci_makes_a_layout_that_we_read(require_tool, tmp_path):
    umoci = require_tool("umoci")
    run([umoci, "init", "--layout", tmp_path / "theirs"])
    run([umoci, "new", "--image", f"{tmp_path}/theirs:v1"])

    layout = LayoutTarget(tmp_path / "theirs")
    what = layout.lookup("v1")
    copy(layout, what, LayoutTarget(tmp_path / "ours", create=True), tag="v1")

    assert LayoutTarget(tmp_path / "ours").lookup("v1") == what

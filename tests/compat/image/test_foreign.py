"""Images that other programs made and pushed: resolved, pulled, inspected, mounted and run by us, byte for byte."""

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from envbuilder.layer.tree import file
from envbuilder.testing.layers import tar_of
from envbuilder.testing.programs import small_system

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="owners and container stores need root"),
]

LONG = "l" * 150
#: What is in srv/ and opq/ once the second layer lies on the first.
FILES = {"srv/kept": b"changed\n", f"srv/{LONG}": b"long\n", "opq/new": b"b\n", "hard": b"changed\n"}
COMMAND = ("sh", "-c", f"cat /srv/kept /srv/{LONG} /link; ls /opq /srv; echo $WHO; id -u")
SAID = f"changed\nlong\nchanged\n/opq:\nnew\n\n/srv:\nkept\n{LONG}\nme\n1000\n"


def upper():
    """A layer as GNU tar writes it: ./names, long names in blocks of their own, whiteouts, owners."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:

        def add(name, data=b"", **fields):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1_000_000_000
            for field, value in fields.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data))

        add("./", type=tarfile.DIRTYPE, mode=0o755)
        add("./srv/.wh.gone")
        add("./opq/.wh..wh..opq")
        add("./opq/new", b"b\n")
        add("./srv/kept", b"changed\n", uid=1000, gid=1000)
        add("./link", type=tarfile.SYMTYPE, linkname="/srv/kept")
        add("./hard", type=tarfile.LNKTYPE, linkname="./srv/kept")
        add(f"./srv/{LONG}", b"long\n", mode=0o4755)
    return out.getvalue()


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    """Two layers as tar and as tar.gz."""
    folder = tmp_path_factory.mktemp("layers")
    files = [file("srv/kept", b"kept\n"), file("srv/gone", b"gone\n"), file("opq/old", b"a\n")]
    for name, data in (("base", tar_of([*small_system(["sh", "cat", "id", "ls"]), *files])), ("top", upper())):
        (folder / f"{name}.tar").write_bytes(data)
        (folder / f"{name}.tar.gz").write_bytes(gzip.compress(data))
    return folder


@pytest.fixture(scope="module")
def by_crane(crane, layers, registry):
    """Pushed by crane with Docker's media types and gzip; the other programs copy it."""
    there = f"{registry.host}/foreign/crane:1"
    crane("append", "--new_layer", layers / "base.tar.gz", "--new_layer", layers / "top.tar.gz", "--new_tag", there)
    crane("mutate", there, "--set-platform=linux/amd64", "--env=WHO=me", "--user=1000:1000", "--tag", there)
    return there


@pytest.fixture(scope="module")
def by_crane_oci(crane, layers, registry):
    """OCI media types, and layers of which one is not compressed."""
    there = f"{registry.host}/foreign/crane-oci:1"
    words = ["--new_layer", layers / "base.tar", "--new_layer", layers / "top.tar.gz", "--new_tag", there]
    crane("append", "--oci-empty-base", *words)
    crane("mutate", there, "--set-platform=linux/amd64", "--env=WHO=me", "--user=1000:1000", "--tag", there)
    return there


@pytest.fixture(scope="module")
def by_crane_index(crane, by_crane, by_crane_oci, registry):
    """An index of two platforms."""
    there = f"{registry.host}/foreign/index"
    crane("mutate", by_crane, "--set-platform=linux/arm64", "--env=WHO=other", "--tag", f"{there}:arm")
    crane("copy", by_crane_oci, f"{there}:amd")
    crane("index", "append", "--manifest", f"{there}:arm", "--manifest", f"{there}:amd", "--tag", f"{there}:1")
    return f"{there}:1"


@pytest.fixture(scope="module")
def by_skopeo_docker(skopeo, by_crane_oci, registry):
    """Docker's second schema, converted from OCI."""
    there = f"{registry.host}/foreign/skopeo-docker:1"
    skopeo("copy", "--format=v2s2", f"docker://{by_crane_oci}", f"docker://{there}")
    return there


@pytest.fixture(scope="module")
def by_skopeo_zstd(skopeo, by_crane, registry):
    """Compressed again with zstd, by the Go library."""
    there = f"{registry.host}/foreign/skopeo-zstd:1"
    words = ["--format=oci", "--dest-compress-format=zstd", "--dest-compress"]
    skopeo("copy", *words, f"docker://{by_crane}", f"docker://{there}")
    return there


@pytest.fixture(scope="module")
def by_skopeo_archive(skopeo, by_crane, tmp_path_factory):
    archive = tmp_path_factory.mktemp("archive") / "foreign.tar"
    skopeo("copy", "--format=oci", f"docker://{by_crane}", f"oci-archive:{archive}:1")
    return f"oci-archive:{archive}:1"


@pytest.fixture(scope="module")
def by_umoci(tool, layers, tmp_path_factory):
    """A layout made by umoci, gzip."""
    umoci, layout = tool("umoci"), tmp_path_factory.mktemp("umoci") / "layout"
    umoci("init", "--layout", layout)
    umoci("new", "--image", f"{layout}:1")
    for name in ("base", "top"):
        umoci("raw", "add-layer", "--image", f"{layout}:1", layers / f"{name}.tar")
    words = ["--architecture=amd64", "--os=linux", "--config.user=1000:1000", "--config.env=WHO=me"]
    umoci("config", "--image", f"{layout}:1", *words)
    return f"oci:{layout}:1"


@pytest.fixture(scope="module")
def pulled_by_podman(podman, by_crane):
    podman("pull", "--quiet", "--tls-verify=false", by_crane)
    return by_crane


@pytest.fixture(scope="module")
def by_podman(podman, pulled_by_podman, registry):
    """Pushed from podman's store, which writes layers of its own from the files."""
    there = f"{registry.host}/foreign/podman:1"
    podman("push", "--quiet", "--tls-verify=false", "--format=oci", pulled_by_podman, there)
    return there


@pytest.fixture(scope="module")
def by_podman_docker(podman, pulled_by_podman, registry):
    there = f"{registry.host}/foreign/podman-docker:1"
    podman("push", "--quiet", "--tls-verify=false", "--format=v2s2", pulled_by_podman, there)
    return there


KINDS = [
    "by_crane",
    "by_crane_oci",
    "by_crane_index",
    "by_skopeo_docker",
    "by_skopeo_zstd",
    "by_skopeo_archive",
    "by_umoci",
    "by_podman",
    "by_podman_docker",
]


@pytest.fixture(params=KINDS)
def foreign(request):
    return request.getfixturevalue(request.param)


def test_it_is_resolved_and_inspected(foreign, cli):
    resolved, shown = cli.json("resolve", foreign), cli.json("inspect", foreign)

    assert resolved["start"] == "full"
    assert resolved["why"] == "the image has no EROFS manifest: it is pulled whole"
    assert (shown["digest"], shown["platform"]) == (resolved["digest"], "linux/x86_64")
    assert (len(shown["layers"]), shown["env"]["WHO"], shown["lazy_manifest"]) == (2, "me", None)


def test_it_is_pulled_with_its_digest(foreign, cli, tmp_path):
    pulled = cli.json("pull", foreign, "--to", f"oci:{tmp_path}/back:1")

    assert cli.json("resolve", f"oci:{tmp_path}/back:1")["digest"] == pulled["digest"]
    assert pulled["digest"] == cli.json("resolve", foreign)["digest"]


def test_it_is_mounted_with_the_right_bytes(foreign, cli, tmp_path):
    root = Path(cli("mount", foreign, str(tmp_path / "root")).stdout.strip())
    try:
        seen = {name: (root / name).read_bytes() for name in FILES}
        there = sorted(path.name for folder in ("srv", "opq") for path in (root / folder).iterdir())
        kept, suid = (root / "srv/kept").stat(), (root / "srv" / LONG).stat()
        same = kept.st_ino == (root / "hard").stat().st_ino
    finally:
        cli("unmount", str(root))

    assert seen == FILES
    assert there == ["kept", LONG, "new"]
    assert (kept.st_uid, kept.st_gid, kept.st_mtime, same) == (1000, 1000, 1_000_000_000, True)
    assert suid.st_mode & 0o7777 == 0o4755


def test_a_command_runs_in_it_as_its_user_with_its_variables(foreign, cli):
    assert cli("run", foreign, "--", *COMMAND).stdout == SAID


def test_an_image_without_a_platform_is_refused_by_name(crane, layers, registry, cli):
    there = f"{registry.host}/foreign/none:1"
    crane("append", "--new_layer", layers / "top.tar.gz", "--new_tag", there)

    said = cli("run", there, "--", "true", status=2).stderr

    assert f"{registry.host}/foreign/none" in said
    assert "platform: want linux/x86_64 or linux/aarch64, got '?/?'" in said

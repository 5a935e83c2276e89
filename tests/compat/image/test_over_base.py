"""An environment over a base that podman made: locked, built, pushed, started by podman and by us."""

import json
import os
import shutil

import pytest

from envbuilder.image.inspect import open_image
from envbuilder.mount.unpack.layers import unpacked
from envbuilder.oci.platform import Platform
from envbuilder.store.layout import LayoutTarget

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="podman's overlay store needs root"),
]

CHANGES = ["ENV FROM_BASE=1", "ENV PATH=/usr/local/bin:/usr/bin:/bin", "LABEL org.example.base=1", "USER 1000:1000"]
WHERE = "import six, sys, os; print(six.__cached__, os.path.exists(six.__cached__), sys.base_prefix, os.environ['FROM_BASE'])"


@pytest.fixture(scope="module")
def base(podman, registry, hello, tmp_path_factory):
    """Debian with Python as an image of podman's, in a registry."""
    folder = tmp_path_factory.mktemp("base")
    store = LayoutTarget(hello.store)
    root = unpacked(open_image(store, store.lookup(hello.digest), Platform("x86_64")), store, folder, lambda *_: None)
    for path in ("opt/env", "usr/share", "usr/sbin", "usr/lib/python3.13/test", "usr/lib/x86_64-linux-gnu/gconv"):
        shutil.rmtree(root / path, ignore_errors=True)
    tar = folder / "base.tar"
    shutil.make_archive(str(tar.with_suffix("")), "tar", root)
    podman("import", "--quiet", *(f"--change={each}" for each in CHANGES), tar, "localhost/base:one")
    there = f"{registry.host}/bases/system:1"
    podman("push", "--quiet", "--tls-verify=false", "localhost/base:one", there)
    yield there
    shutil.rmtree(folder)


def declare(cli, name, image, more=""):
    folder = cli.project / "images" / name
    folder.mkdir()
    (folder / "env.toml").write_text(
        f'name = "{name}"\nversion = "1"\npython = "3.13"\nrequires = ["six"]\n'
        f'[base]\nimage = "{image}"\nsystem = "debian-13"\n{more}'
    )


def test_podmans_image_is_a_base_that_stays_as_it_is(fresh, base, podman, registry):
    declare(fresh, "over", base, 'glibc = "2.36"\n')
    fresh("lock", "over")
    there = f"{registry.host}/over/env:1"
    cache = str(fresh.project.parent / "cache")  # the base is another one at each run: not into the cache of all
    (built,) = fresh.json("build", "over", "--to", there, ENVBUILDER_CACHE=cache)
    theirs = json.loads(podman("image", "inspect", "localhost/base:one").stdout)[0]
    layers = fresh.json("inspect", there)["layers"]
    devices = sum(each["size"] for each in layers if "/base-" not in each["id"])

    assert [each["diff_id"] for each in layers[:1]] == theirs["RootFS"]["Layers"]
    assert built["copied_bytes"] < devices + layers[0]["size"] + 8_000_000  # one copy of it, for lazy starts
    podman("pull", "--quiet", "--tls-verify=false", there)
    seen = podman("run", "--rm", "--network=none", there, "python3", "-c", WHERE)
    assert seen.stdout.decode().split() == [
        "/opt/env/lib/python3.13/site-packages/__pycache__/six.cpython-313.pyc", "True", "/usr", "1",
    ]  # fmt: skip
    lazily = fresh("run", there, "--", "python3", "-c", WHERE)
    assert lazily.stdout == seen.stdout.decode()
    # A machine that has nothing fetches no base: what was noted of it is in the registry.
    shutil.rmtree(fresh.store)
    (again,) = fresh.json("build", "over", "--to", there)
    assert (again["digest"], again["copied_bytes"]) == (built["digest"], 0)

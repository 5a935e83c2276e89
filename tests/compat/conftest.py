"""Root file systems that GNU tar unpacks from the layers of a committed lock."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.cli.settings import load_settings
from envbuilder.layer.plan import AnyPlan, WheelPlan, plan
from envbuilder.layer.tar import write_tar
from envbuilder.layer.top import TopPlan
from envbuilder.lock.archives import find_archives
from envbuilder.lock.codec import load
from envbuilder.lock.fetch import ArtifactCache
from envbuilder.lock.model import Wheel
from envbuilder.lock.settings import read_python_indexes
from envbuilder.proc import run

ROOT = Path(__file__).parents[2]
#: All that a command in a root file system of ours knows of the host.
SYSTEM = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}


@pytest.fixture(scope="session")
def locked():
    """The committed lock of an environment."""

    def read(name):
        path = ROOT / "lockfiles" / name / "linux-x86_64.lock.toml"
        return load(path.read_bytes(), source=str(path))

    return read


@pytest.fixture(scope="session")
def artifacts():
    """The artefacts of this machine's cache, fetched when missing."""
    settings = load_settings(project=None, environ=os.environ, flags={}, uid=os.geteuid())
    return ArtifactCache(
        Path(settings.get("cache")),
        indexes=read_python_indexes(os.environ, settings.section("indexes")).all,
        mirrors=find_archives(settings.section("mirrors")),
    )


@pytest.fixture(scope="session")
def unpacked(artifacts, tmp_path_factory):
    """The root file system of a lock's layers; ``wheels`` chooses which wheels are in it."""
    if os.geteuid() != 0:
        pytest.skip("unpacking owners needs root")

    def unpack(lock, wheels: Callable[[Wheel], bool]):
        work = tmp_path_factory.mktemp(lock.name)
        root, placed = work / "root", []
        root.mkdir()
        chosen: list[AnyPlan] = []
        for layer in plan([lock]):
            if isinstance(layer, WheelPlan):
                if some := tuple(filter(wheels, layer.wheels)):
                    chosen.append(replace(layer, wheels=some))
            else:
                chosen.append(layer)
        artifacts.prefetch([artifact for layer in chosen for artifact in layer.artifacts])
        for layer in chosen:
            grounded = layer.on(placed, ROOT) if isinstance(layer, TopPlan) else layer
            tar = work / "layer.tar"
            with tar.open("wb") as out:
                placed.append(write_tar(grounded.entries(artifacts, cache=work), out))
            run(["tar", "--numeric-owner", "-xpf", tar, "-C", root])
            tar.unlink()
        return root

    return unpack


@pytest.fixture(scope="session")
def chrooted():
    """Run a command inside a root file system, which never needed one to be built."""

    def call(root, *argv, **variables):
        return run(["chroot", root, *argv], env={**SYSTEM, **variables}).stdout.decode()

    return call


@pytest.fixture(scope="session")
def loader_caches():
    """Our ld.so.cache of a root and the one that ldconfig makes of it, both without the name of their generator."""

    def without_generator(data):
        start = max(data.rfind(b"envbuilder"), data.rfind(b"ldconfig ("))
        return data[: start - 4]  # the generator's length stands before it

    def read(root):
        ours = (root / "etc/ld.so.cache").read_bytes()
        run(["ldconfig", "-r", root, "-C", "/tmp/theirs"], env=SYSTEM)
        theirs = (root / "tmp/theirs").read_bytes()
        (root / "tmp/theirs").unlink()
        return without_generator(ours), without_generator(theirs)

    return read

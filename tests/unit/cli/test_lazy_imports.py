"""A verb imports what it uses: signatures, inventories and other people's clients are for those who ask for them."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from envbuilder.digest import Descriptor, describe
from envbuilder.oci import media_types
from envbuilder.oci.manifest import Manifest
from envbuilder.store.layout import LayoutTarget

#: What a copy does not need to ask a registry for the first time, or only where something is unusual.
_AFTER_THE_FIRST_REQUEST = (
    "envbuilder.image.inspect", "envbuilder.layer.chunks", "envbuilder.mount", "envbuilder.registry.challenge",
    "envbuilder.registry.helper", "envbuilder.registry.logins", "envbuilder.registry.realms", "envbuilder.store.cache",
    "shlex", "subprocess", "zstandard",
)  # fmt: skip
#: The same of a start, when it copies itself for its keeper and asks a registry.
_AFTER_THE_FORK = (
    "envbuilder.image.inspect", "envbuilder.mount.chunks.store", "envbuilder.mount.counters", "envbuilder.mount.mount",
    "envbuilder.mount.state", "envbuilder.store.cache", "subprocess", "zstandard",
)  # fmt: skip
#: Modules of ours that may be there at the first request of a copy: 72 when this was written, 0.1 to 1 ms each.
_MOST = 76
#: What no plain transfer, look-up or start needs; each costs every call of a job's start.
_SELDOM = ("cryptography", "cyclonedx", "docker", "oras", "sigstore", "pip", "indexed_gzip")


def _loaded(verb: str) -> set[str]:
    program = (
        "import importlib, sys\n"
        f"importlib.import_module('envbuilder.cli.{verb}')\n"
        f"print(*(name for name in {_SELDOM!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["pull", "push", "copy", "resolve", "mount", "run", "login", "build"])
def test_a_verb_does_not_import_what_it_seldom_uses(verb: str) -> None:
    assert _loaded(verb) == set()


@pytest.mark.slow
def test_a_verb_that_checks_signatures_imports_what_checks_them() -> None:
    assert "cryptography" in _loaded("sign")


@pytest.mark.slow
def test_a_transfer_starts_without_what_locks_and_mounts() -> None:
    program = (
        "import sys, envbuilder.cli.copy\n"
        "print(*(name for name in ('envbuilder.lock.make', 'envbuilder.mount.mount') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not done.stdout.split()


@pytest.mark.slow
def test_a_copy_asks_the_registry_before_it_imports_what_it_needs_later(tmp_path: Path) -> None:
    layout = LayoutTarget(tmp_path / "layout", create=True)

    def push(data: bytes, media_type: str) -> Descriptor:
        what = describe(data, media_type)
        layout.push(what, partial(io.BytesIO, data))
        return what

    manifest = Manifest(config=push(b"{}", media_types.OCI_CONFIG), layers=(push(b"x", media_types.OCI_LAYER_TAR),))
    layout.tag(push(manifest.dump(), media_types.OCI_MANIFEST), "1")
    program = (
        "import os, sys\n"
        "def at_connect(event, arguments):\n"
        "    if event == 'socket.connect':\n"
        "        os.write(1, ' '.join(sys.modules).encode())\n"
        "        os._exit(0)\n"
        "sys.addaudithook(at_connect)\n"
        "from envbuilder.cli.main import main\n"
        "main()"
    )
    env = {**os.environ, "ENVBUILDER_CACHE": str(tmp_path / "cache"), "HOME": str(tmp_path)}
    words = ["copy", f"oci:{tmp_path / 'layout'}:1", "localhost:9/some/image:1", "--quiet"]
    done = subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, text=True, env=env)
    loaded = set(done.stdout.split())
    assert "envbuilder.registry.transport" in loaded
    assert loaded.isdisjoint(_AFTER_THE_FIRST_REQUEST)
    assert sum(name.startswith("envbuilder.") for name in loaded) <= _MOST


@pytest.mark.slow
def test_a_start_forks_before_it_imports_what_mounts() -> None:
    program = (
        "import sys, envbuilder.cli.main, envbuilder.cli.verbs, envbuilder.cli.run, envbuilder.mount.settings\n"
        f"print(*(name for name in {_AFTER_THE_FORK!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert not done.stdout.split()

"""A verb imports what it uses: signatures, inventories and other people's clients are for those who ask for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

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

"""A lock for a system that is made elsewhere: its wheels install there by hash, with pip alone. This host is that system."""

import os
import platform
import sys

import pytest

from envbuilder.proc import run

pytestmark = [pytest.mark.slow, pytest.mark.network]


def test_pip_installs_the_exported_lock_into_the_system_that_it_is_for(fresh, tmp_path):
    version, glibc = platform.python_version(), platform.libc_ver()[1]
    folder = fresh.project / "images/there"
    folder.mkdir()
    (folder / "env.toml").write_text(
        f'name = "there"\nversion = "1"\npython = "{version.rpartition(".")[0]}"\n'
        f'platforms = ["linux/{platform.machine()}"]\nrequires = ["charset-normalizer", "idna"]\n'
        f'[base]\nsystem = "this-host"\ninterpreter = "{version}"\nglibc = "{glibc}"\n'
    )
    fresh("lock", "there", "--all-platforms")
    fresh("export", "there", "--format", "requirements", "--output", str(tmp_path / "requirements.txt"))
    refused = fresh("build", "there", status=2)

    environment = {name: text for name, text in os.environ.items() if not name.startswith("ENVBUILDER_")}
    pip = [sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    run([*pip, "--target", tmp_path / "site", "-r", tmp_path / "requirements.txt"], env=environment)
    code = "import charset_normalizer.md, idna; print(charset_normalizer.__file__)"
    said = run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(tmp_path / "site")}).stdout.decode()

    assert said.startswith(str(tmp_path / "site"))
    assert "envbuilder export there --format requirements" in refused.stderr

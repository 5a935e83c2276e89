"""Debian's podman pulls the plain manifest of the real image and runs what the lock says."""

import json
import os
from pathlib import Path

import pytest

from envbuilder.lock.codec import load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(os.geteuid() != 0, reason="podman's overlay store needs root"),
]


@pytest.fixture(scope="module")
def repository(registry, hello_cli, hello):
    hello_cli("push", hello.reference, f"{registry.host}/podman/hello:1")
    return f"{registry.host}/podman/hello"


@pytest.fixture(scope="module")
def inside(podman, repository, hello):
    """Run a command in the plain manifest, named by its digest, without network."""
    reference = f"{repository}@{hello.plain_digest}"
    podman("pull", "--quiet", "--tls-verify=false", reference)

    def run(*command, **options):
        words = ["--rm", "--pull=never", "--network=none", reference, *command]
        return podman("run", *words, **options)

    return run


def test_a_pull_of_the_tag_takes_the_plain_manifest(podman, repository, hello, inside):
    podman("pull", "--quiet", "--tls-verify=false", f"{repository}:1")
    (image,) = json.loads(podman("image", "inspect", f"{repository}:1").stdout)

    assert f"sha256:{image['Id']}" == hello.plain["config"]["digest"]
    assert f"{repository}@{hello.plain_digest}" in image["RepoDigests"]
    assert image["RootFS"]["Layers"] == hello.plain_config["rootfs"]["diff_ids"]
    assert image["Config"]["Labels"] == hello.plain_config["config"]["Labels"]


def test_packages_are_imported(inside):
    code = "import numpy, pandas; print(int(pandas.Series(numpy.arange(5)).sum()))"

    assert inside("python3", "-c", code).stdout == b"10\n"


def test_the_images_own_command_is_its_interpreter(inside):
    assert inside(stdin=b"").status == 0


def test_pip_lists_exactly_the_lock(inside, hello_cli):
    path = Path(hello_cli.project) / "lockfiles/hello/linux-x86_64.lock.toml"
    locked = {(wheel.name, wheel.version) for wheel in load(path.read_bytes(), source=str(path)).wheels}

    listed = json.loads(inside("pip", "list", "--format=json", "--disable-pip-version-check").stdout)

    assert {(item["name"], item["version"]) for item in listed} == locked
    assert inside("pip", "check", "--disable-pip-version-check").stdout == b"No broken requirements found.\n"


def test_dpkg_finds_nothing_to_do_and_the_packages_of_the_lock(inside, hello_cli):
    path = Path(hello_cli.project) / "lockfiles/hello/linux-x86_64.lock.toml"
    locked = {(deb.name, deb.version) for deb in load(path.read_bytes(), source=str(path)).debs}

    audit = inside("dpkg", "--audit")
    shown = inside("dpkg-query", "--show", "--showformat=${Package} ${Version} ${db:Status-Abbrev}\n").stdout.decode()

    assert (audit.stdout, audit.stderr) == (b"", b"")
    assert {tuple(line.split()) for line in shown.splitlines()} == {(*each, "ii") for each in locked}


def test_the_variables_of_the_declaration_are_there(inside, hello):
    seen = inside("env").stdout.decode().splitlines()

    assert set(hello.plain_config["config"]["Env"]) <= set(seen)
    assert "LANG=C.UTF-8" in seen


def test_names_and_owners_are_those_of_the_image(inside):
    script = "id -un; stat -c '%U:%G %a' /usr/sbin/unix_chkpwd /usr/bin/su; getent passwd nobody | cut -d: -f3"

    assert inside("sh", "-c", script).stdout == b"root\nroot:shadow 2755\nroot:root 4755\n65534\n"


def test_what_podman_pushes_on_is_read_by_us(podman, repository, registry, inside, cli):
    """podman compresses again: other digests, the same files."""
    there = f"{registry.host}/podman/again:1"
    reference = f"{repository}:1"
    podman("pull", "--quiet", "--tls-verify=false", reference)
    podman("push", "--quiet", "--tls-verify=false", reference, there)

    ran = cli("run", there, "--", "python3", "-c", "import numpy; print(numpy.arange(5).sum())")

    assert ran.stdout == "10\n"

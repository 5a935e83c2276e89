"""apt and the real archive: what is chosen, what is refused, what of the host is touched."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.lock.archives import DEBIAN, SECURITY, find_archives
from envbuilder.lock.debian import (
    ArchiveUnavailable,
    NoKeyring,
    ParentMoved,
    UnknownDebianPackage,
    UnknownSuite,
    UnsatisfiableDebs,
    UntrustedArchive,
    resolve_debs,
    upstream_version,
)
from envbuilder.oci.platform import Platform
from envbuilder.proc import run
from envbuilder.spec.model import Base

pytestmark = [pytest.mark.slow, pytest.mark.network]

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
BASE = Base(suite="trixie", packages=("python3.13",))


@pytest.fixture(autouse=True)
def tools(require_tool, require_file):
    require_tool("apt-get")
    require_file(KEYRING)


@pytest.fixture(scope="module")
def archives():
    return find_archives({})


def resolve(base, archives, *, machine="x86_64", root=Path("/"), environment=None, keep=()):
    return resolve_debs(
        base,
        Platform(machine),
        archives=archives,
        runner=run,
        environment=environment or {"PATH": os.environ["PATH"]},
        root=root,
        keep=keep,
    )


def test_the_essential_set_and_the_named_packages_are_there_and_apt_is_not(archives):
    debs = {deb.name: deb for deb in resolve(BASE, archives)}

    assert {"libc6", "dpkg", "bash", "coreutils", "python3.13", "libpython3.13-stdlib"} <= debs.keys()
    assert "apt" not in debs
    assert "ca-certificates" not in debs  # recommended only
    assert debs["libc6"].source == "glibc"
    assert debs["libc6"].file.startswith("pool/")
    assert upstream_version(debs["libc6"].version) == "2.41"
    assert [*debs] == sorted(debs)


def test_two_resolutions_give_the_same(archives):
    assert resolve(BASE, archives) == resolve(replace(BASE, packages=("python3.13", "libc6")), archives)


def test_another_architecture_is_resolved_without_the_hosts(archives):
    debs = resolve(BASE, archives, machine="aarch64")

    assert {deb.architecture for deb in debs} == {"arm64", "all"}


def test_nothing_of_the_host_is_touched_or_asked(archives):
    watched = [Path(p) for p in ("/var/lib/apt/lists", "/var/cache/apt", "/etc/apt", "/var/lib/dpkg/status")]
    before = [path.stat().st_mtime_ns for path in watched if path.exists()]
    seen = []

    def runner(argv, **options):
        seen.append((tuple(argv), dict(options["env"])))
        return run(argv, **options)

    resolve_debs(BASE, Platform("x86_64"), archives=archives, runner=runner, environment={"PATH": os.environ["PATH"]})

    assert [path.stat().st_mtime_ns for path in watched if path.exists()] == before
    assert all("APT_CONFIG" in env for argv, env in seen if argv[0] != "apt-config")
    assert not Path(seen[-1][1]["APT_CONFIG"]).exists()


def test_an_ordinary_user_can_resolve(archives, require_tool):
    if os.geteuid() != 0:
        pytest.skip("every test here runs as an ordinary user")
    setpriv = require_tool("setpriv")

    def runner(argv, **options):
        folder = options["cwd"]
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, 65534, 65534)
        return run([setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", *argv], **options)

    debs = resolve_debs(
        BASE, Platform("x86_64"), archives=archives, runner=runner, environment={"PATH": os.environ["PATH"]}
    )
    assert debs == resolve(BASE, archives)


def test_an_unknown_suite_is_told(archives):
    with pytest.raises(UnknownSuite, match="no suite 'nosuch'"):
        resolve(replace(BASE, suite="nosuch"), archives)


def test_unknown_packages_are_told_by_name(archives):
    with pytest.raises(UnknownDebianPackage, match="no package no-such-thing"):
        resolve(replace(BASE, packages=("python3.13", "no-such-thing")), archives)


def test_packages_that_exclude_each_other_are_refused(archives):
    with pytest.raises(UnsatisfiableDebs, match="postfix"):
        resolve(replace(BASE, packages=("exim4-daemon-light", "postfix")), archives)


def test_an_archive_that_debian_did_not_sign_is_refused(archives, tmp_path):
    keyring = tmp_path / KEYRING.relative_to("/")
    keyring.parent.mkdir(parents=True)
    shutil.copy("/usr/share/keyrings/debian-archive-removed-keys.gpg", keyring)

    with pytest.raises(UntrustedArchive, match="no valid signature"):
        resolve(BASE, archives, root=tmp_path)


def test_missing_keys_are_told_with_the_package_that_has_them(archives, tmp_path):
    with pytest.raises(NoKeyring) as caught:
        resolve(BASE, archives, root=tmp_path)
    assert caught.value.hint == "Run: apt-get install debian-archive-keyring"


def test_a_mirror_that_is_down_is_told_without_credentials():
    dead = "http://user:hunter2@127.0.0.1:9/debian"

    with pytest.raises(ArchiveUnavailable) as caught:
        resolve(BASE, {DEBIAN: dead, SECURITY: dead})
    assert "hunter2" not in str(caught.value)


@pytest.fixture(scope="module")
def parent(archives):
    return resolve(BASE, archives)


def test_a_child_adds_packages_and_changes_none_of_its_parents(archives, parent):
    child = resolve(replace(BASE, packages=("file", "python3.13")), archives, keep=parent)

    assert {*parent} < {*child}
    assert "file" in {deb.name for deb in child}


def test_a_parent_of_which_the_archive_has_moved_on_must_be_locked_anew(archives, parent):
    old = [replace(deb, version="0.1", digest=Digest.of(b"old")) if deb.name == "tar" else deb for deb in parent]

    with pytest.raises(ParentMoved, match=r"the parent has tar 0\.1, the archive gives") as caught:
        resolve(replace(BASE, packages=("file", "python3.13")), archives, keep=old)
    assert "--upgrade" in caught.value.hint

"""apt and the real archive: what is chosen, what is refused, what of the host is touched."""

import os
import shutil
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.lock.archives import DEBIAN, SECURITY, find_archives, snapshot_archives
from envbuilder.lock.debian import (
    ArchiveUnavailable,
    Installed,
    NoKeyring,
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


def resolve(base, archives, *, machine="x86_64", root=Path("/"), environment=None, installed=None, anew=()):
    return resolve_debs(
        base,
        Platform(machine),
        archives=archives,
        runner=run,
        environment=environment or {"PATH": os.environ["PATH"]},
        root=root,
        installed=installed,
        anew=anew,
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


def test_indexes_that_are_still_so_are_not_fetched_again(archives, tmp_path):
    said = []

    def watched(argv, **options):
        done = run(argv, **options)
        said.extend([done.stdout.decode()] if "update" in argv else [])
        return done

    first, second = (
        resolve_debs(
            BASE,
            Platform("x86_64"),
            archives=archives,
            runner=watched,
            environment={"PATH": os.environ["PATH"]},
            lists=tmp_path / "lists",
        )
        for _ in range(2)
    )

    assert first == second
    assert ["main amd64 Packages" in each for each in said] == [True, False]


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
    with pytest.raises(UnknownSuite, match=r"no suite 'nosuch'\nE: The repository 'http\S+ nosuch"):
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


def paragraph(deb, **fields):
    """A package of the parent as dpkg's status file has it; its relations do not matter here."""
    lines = {"Package": deb.name, "Status": "install ok installed", "Architecture": deb.architecture}
    return "".join(f"{key}: {value}\n" for key, value in {**lines, "Version": deb.version, **fields}.items())


def test_a_child_adds_packages_and_changes_none_of_its_parents(archives, parent):
    child = resolve(
        replace(BASE, packages=("file", "python3.13")), archives, installed=Installed(debs=parent, paragraph=paragraph)
    )

    assert {*parent} < {*child}
    assert "file" in {deb.name for deb in child}


def test_a_parent_of_which_the_archive_has_moved_on_stays_as_it_is_but_for_what_the_child_needs(archives, parent):
    old = [
        replace(deb, version="0.1", digest=Digest.of(b"old")) if deb.name in {"tar", "zlib1g"} else deb
        for deb in parent
    ]
    there = Installed(debs=old, paragraph=paragraph)
    base = replace(BASE, packages=("file", "python3.13"))
    child = {deb.name: deb for deb in resolve(base, archives, installed=there)}
    asked = {deb.name: deb for deb in resolve(base, archives, installed=there, anew=["tar"])}
    now = {deb.name: deb for deb in parent}

    assert child["tar"].version == "0.1"
    assert child["zlib1g"] == now["zlib1g"]  # libmagic1t64 wants >= 1:1.1.4
    assert child["libc6"] == now["libc6"]
    assert asked["tar"] == now["tar"]


def test_what_cannot_be_beside_what_the_child_asks_for_is_left_out_unless_it_was_asked_for(archives, parent):
    odd = replace(parent[0], name="odd", digest=Digest.of(b"odd"))

    def conflicting(deb):
        return paragraph(deb, **({"Conflicts": "file"} if deb is odd else {}))

    there = Installed(debs=[*parent, odd], paragraph=conflicting)
    child = {deb.name for deb in resolve(replace(BASE, packages=("file", "python3.13")), archives, installed=there)}

    assert "file" in child
    assert "odd" not in child
    with pytest.raises(UnsatisfiableDebs, match="odd of the parent cannot be beside file"):
        resolve(replace(BASE, packages=("file", "odd", "python3.13")), archives, installed=there)


class Redirected(BaseHTTPRequestHandler):
    """A snapshot archive of one moment, which is now: all of it lies in the real archive."""

    def do_GET(self):
        self.server.seen.append(self.path)
        _, role, moment, rest = self.path.split("/", 3)
        self.send_response(302 if moment == "20261101T000000Z" else 404)
        self.send_header("Location", f"{self.server.archives[role]}/{rest}")
        self.end_headers()

    def log_message(self, *_):
        pass


def test_a_dated_suite_is_asked_of_the_snapshot_archive_and_named_in_every_package(archives):
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirected) as server:
        server.seen, server.archives = [], archives
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        root = f"http://127.0.0.1:{server.server_address[1]}"
        configured = {f"{role}-snapshot": f"{root}/{role}/{{date}}" for role in archives}
        base = replace(BASE, snapshot="20261101T000000Z")
        debs = resolve(base, snapshot_archives(configured, base.snapshot))
        server.shutdown()

    assert {deb.archive for deb in debs} <= {"debian@20261101T000000Z", "debian-security@20261101T000000Z"}
    assert [deb.digest for deb in debs] == [deb.digest for deb in resolve(BASE, archives)]
    assert all("/20261101T000000Z/" in path for path in server.seen)

"""A Debian system made of layers against one that dpkg installed from the same packages.

The reference is mmdebstrap's, from a local repository of the locked packages. What may differ stands
in ``ALLOWED``, with the reason.
"""

import os
import re
import shutil
import stat
from functools import partial
from pathlib import Path

import pytest

from envbuilder.digest import Digest
from envbuilder.layer.deb import control_of
from envbuilder.proc import run

pytestmark = [pytest.mark.slow, pytest.mark.network]

#: Paths that may differ, and why.
ALLOWED = {
    r"(proc|sys|dev)(/.*)?": "mounted or made by the runtime",
    r"etc/apt/.*|var/lib/apt(/.*)?|var/cache/apt(/.*)?|var/log/apt(/.*)?": "apt and mmdebstrap ran for the reference",
    r"var/log/(dpkg|alternatives)\.log": "logs of the run",
    r"var/cache/debconf/.*": "debconf's answers; made on demand",
    r"var/cache/ldconfig/aux-cache": "names inodes; made on demand",
    r"var/lib/dpkg/(lock|lock-frontend|triggers/Lock|status-old|diversions-old|available|statoverride)": "made on demand",
    r"var/lib/dpkg/diversions": "a hash's order; compared as a set",
    r"etc/ld\.so\.cache": "names its generator; the rest is compared",
    r"etc/(hostname|resolv\.conf|machine-id|fstab)": "the reference has the host's; ours are empty",
    r"(etc/systemd/system|var/lib/systemd)(/.*)?": "enabled units: no systemd runs in an image",
    r".*/__pycache__(/.*)?": "byte-code: ours is valid whatever the mtime of its source",
    r"opt/env(/.*)?": "the environment's own prefix",
}


@pytest.fixture(scope="module")
def lock(locked):
    return locked("hello")


@pytest.fixture(scope="module")
def ours(lock, unpacked):
    return unpacked(lock, wheels=lambda _wheel: False)


@pytest.fixture(scope="module")
def reference(lock, artifacts, tmp_path_factory):
    """The same packages as dpkg and their maintainer scripts install them; None without mmdebstrap."""
    mmdebstrap = shutil.which("mmdebstrap")
    if mmdebstrap is None:
        return None
    work = tmp_path_factory.mktemp("reference")
    repository, root = work / "repository", work / "root"
    repository.mkdir()
    work.chmod(0o755)
    paragraphs = []
    for deb in lock.debs:
        source = artifacts.file(deb)
        name = f"{deb.name}_{deb.digest.hex[:8]}.deb"
        (repository / name).symlink_to(source)
        fields = dict(control_of(source).fields, Filename=f"./{name}", Size=str(deb.size), SHA256=deb.digest.hex)
        paragraphs.append("".join(f"{key}: {value}\n" for key, value in fields.items()))
    (repository / "Packages").write_text("\n".join(paragraphs))
    run(
        [
            mmdebstrap,
            "--mode=root",
            "--variant=custom",
            f"--architectures={lock.platform.debian}",
            f"--include={','.join(deb.name for deb in lock.debs)}",
            lock.suite,
            root,
            f"deb [trusted=yes] copy:{repository} ./",
        ],
        env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
    )
    return root


@pytest.fixture
def chroot(ours, chrooted):
    return partial(chrooted, ours)


def tree(root):
    """Path -> what must be equal."""
    found = {}
    for folder, directories, files in os.walk(root):
        for name in directories + files:
            path = Path(folder, name)
            status = path.lstat()
            data = b""
            if stat.S_ISLNK(status.st_mode):
                data = os.fsencode(path.readlink())
            elif stat.S_ISREG(status.st_mode):
                data = Digest.of(path.read_bytes()).hex.encode()
            links = status.st_nlink if stat.S_ISREG(status.st_mode) else 1
            found[str(path.relative_to(root))] = (oct(status.st_mode), status.st_uid, status.st_gid, links, data)
    return found


def test_the_tree_is_the_one_that_dpkg_installs(ours, reference, require_tool):
    require_tool("mmdebstrap")
    got, want = tree(ours), tree(reference)
    allowed = re.compile("|".join(f"(?:{pattern})" for pattern in ALLOWED))
    different = [
        f"{path}: dpkg {want.get(path)}, ours {got.get(path)}"
        for path in sorted(got.keys() | want.keys())
        if got.get(path) != want.get(path) and not allowed.fullmatch(path)
    ]

    assert different == []


def test_dpkg_knows_the_same_diversions(ours, reference, require_tool):
    require_tool("mmdebstrap")

    def diversions(root):
        lines = (root / "var/lib/dpkg/diversions").read_text().splitlines()
        return {tuple(lines[at : at + 3]) for at in range(0, len(lines), 3)}

    assert diversions(ours) == diversions(reference)


def test_the_loader_cache_is_the_one_that_ldconfig_writes(ours, loader_caches):
    got, want = loader_caches(ours)

    assert got == want


def test_dpkg_finds_every_package_whole(lock, chroot):
    listed = chroot("dpkg-query", "-W", "-f", "${db:Status-Abbrev}${Package} ${Version}\n").splitlines()

    assert listed == sorted(f"ii {deb.name} {deb.version}" for deb in lock.debs)
    assert chroot("dpkg", "--audit") == ""
    assert chroot("dpkg", "--verify") == ""


def test_the_interpreter_has_its_libraries_and_authorities(chroot):
    code = "import ssl, sqlite3, ctypes, lzma, bz2; print(len(ssl.create_default_context().get_ca_certs()))"

    assert int(chroot("python3.13", "-c", code)) > 100


def test_names_alternatives_and_authorities_are_found(chroot):
    assert chroot("getent", "passwd", "_apt").startswith("_apt:")
    assert chroot("awk", "BEGIN { print 1 + 1 }") == "2\n"
    assert "auto" in chroot("update-alternatives", "--query", "awk")
    assert ": OK" in chroot("openssl", "verify", "-CApath", "/etc/ssl/certs", "/etc/ssl/certs/ISRG_Root_X1.pem")
    assert chroot("su", "nobody", "-s", "/bin/sh", "-c", "id -un") == "nobody\n"


def test_dpkg_can_go_on_from_there(ours, chroot, lock, artifacts):
    deb = next(deb for deb in lock.debs if deb.name == "sed")
    (ours / "tmp/again.deb").write_bytes(artifacts.file(deb).read_bytes())

    chroot("dpkg", "--install", "/tmp/again.deb")

    assert chroot("dpkg", "--audit") == ""

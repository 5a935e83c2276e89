"""The oracle of Debian packages: dpkg itself unpacks each awkward one into a root with a merged /usr."""

import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from envbuilder.layer.build import LocalFiles
from envbuilder.layer.computed import computed_entries
from envbuilder.layer.deb import control_of, deb_entries
from envbuilder.layer.debian.known_scripts import REVIEWED, Reviewed
from envbuilder.layer.debian.maintainer import script_digest
from envbuilder.proc import run
from envbuilder.testing.debs import deb_of
from envbuilder.testing.layers import layer_of
from envbuilder.testing.locks import SMALL
from envbuilder.testing.zoo import deb_zoo

pytestmark = pytest.mark.slow

SPECIMENS = {specimen.name: specimen for specimen in deb_zoo()}


def merged_root(folder):
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / "usr" / name).mkdir(parents=True)
        (folder / name).symlink_to(f"usr/{name}")
    (folder / "var/lib/dpkg/info").mkdir(parents=True)
    (folder / "var/lib/dpkg/updates").mkdir()
    (folder / "var/lib/dpkg/status").touch()
    return folder


def row(path):
    status = path.lstat()
    kind = stat.S_IFMT(status.st_mode)
    data = path.read_bytes() if kind == stat.S_IFREG else os.fsencode(path.readlink()) if kind == stat.S_IFLNK else b""
    device = (os.major(status.st_rdev), os.minor(status.st_rdev)) if kind in (stat.S_IFCHR, stat.S_IFBLK) else (0, 0)
    return status.st_mode, status.st_uid, status.st_gid, device, data


@pytest.mark.parametrize("name", SPECIMENS)
def test_dpkg_makes_the_same_of_an_awkward_package(name, tmp_path, require_tool, monkeypatch):
    if os.geteuid() != 0:
        pytest.skip("owners and devices need root")
    file, root = tmp_path / f"{name}.deb", merged_root(tmp_path / "root")
    file.write_bytes(SPECIMENS[name].data)
    command = [
        require_tool("dpkg"),
        f"--root={root}",
        "--force-script-chrootless",
        "--log=/dev/null",
        "--install",
        file,
    ]
    run(command, env={**os.environ, "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin", "DPKG_FRONTEND_LOCKED": ""})

    deb = deb_of(SPECIMENS[name].data, name=name)
    entries = {entry.path: entry for entry in deb_entries(file, deb)}
    below = [layer_of(list(entries.values())).layer.placed]
    if script := control_of(file).script("postinst"):
        monkeypatch.setitem(REVIEWED, name, Reviewed(scripts=(script_digest(script),)))
    # Of what is computed, the choices of alternatives: the rest belongs to packages that are not here.
    files = LocalFiles({deb.digest: file})
    computed = computed_entries(replace(SMALL, debs=(deb,)), below, files, site_packages="opt/env")
    entries |= {entry.path: entry for entry in computed if "alternatives" in entry.path or entry.is_symlink}
    targets = {path: entries[entry.link] for path, entry in entries.items() if entry.is_file and entry.link}
    ours = {}
    for path, entry in entries.items():
        real = targets.get(path, entry)
        data = os.fsencode(entry.link) if entry.is_symlink else real.open().read() if real.open else b""
        ours[path] = (real.mode, real.uid, real.gid, entry.device, data)
    theirs = {str(path.relative_to(root)): row(path) for path in root.rglob("*")}
    database = {path for path in theirs if path.startswith("var/lib/dpkg")}
    skeleton = {str(path.relative_to(tmp_path / "bare")) for path in merged_root(tmp_path / "bare").rglob("*")}

    assert {path: theirs.get(path) for path in ours if path not in skeleton} == {
        path: value for path, value in ours.items() if path not in skeleton
    }
    made = {parent for path in ours for parent in map(str, Path(path).parents)}
    log = {"var/log", "var/log/alternatives.log"}
    assert theirs.keys() - ours.keys() - database - skeleton - made - log == set()
    for path, entry in targets.items():
        assert (root / path).stat().st_ino == (root / entries[path].link).stat().st_ino, entry
    assert not [path for path in database if path.endswith((".list", ".conffiles", ".triggers")) and path not in ours]

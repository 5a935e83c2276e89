"""What the peers are given: the locked wheels under their own names, and a base image of the locked debs.

All of it is made before anything is measured, and kept between runs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from measure import measured
from product import artefact_cache, envbuilder, lock_file
from scratch import Bench, Unavailable, need, need_root, remove, tool

from envbuilder.lock.codec import load
from envbuilder.lock.model import Artifact, Deb, Lock

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Inputs of a peer's build.

    wheels: folder of the wheels, with ``requirements.txt``: ``name==version`` of exactly these.
    uv_cache: uv's cache, warm: every wheel unpacked in it.
    base: tar of a root file system with the locked debs and uv. root: the same, unpacked.
    """

    wheels: Path
    uv_cache: Path
    base: Path
    root: Path
    python: str  # "/usr/bin/python3.13"

    def install(self, link_mode: str, *, wheels: str = "", cache: str = "") -> str:
        """Shell, inside the base: a virtual environment of the locked wheels, compiled; all from the warm cache.

        ``wheels``, ``cache``: where these folders are inside; without, where they are here.
        """
        wheels, cache = wheels or str(self.wheels), cache or str(self.uv_cache)
        settings = f"UV_CACHE_DIR={cache} UV_LINK_MODE={link_mode} UV_PYTHON_DOWNLOADS=never UV_OFFLINE=1"
        return (
            f"export PATH={_PATH} {settings}; uv venv -q --allow-existing --python {self.python} /opt/env && "
            f"uv pip install -q --python /opt/env/bin/python --no-index --find-links {wheels} "
            f"--no-deps --compile-bytecode -r {wheels}/requirements.txt"
        )

    def chroot(self, result: Path, *, cache: Path | None = None) -> list[str]:
        """A program that runs ``install`` in the base without an engine; ``result``/env becomes the prefix.

        ``cache``: uv's, in place of the warm one. It and ``result`` are below one mount there, so that uv links what
        a container has to copy. Its mounts are in a mount namespace of its own: none outlives it.
        """
        shared = self.wheels.parent.parent
        install = self.install("hardlink", cache=str(cache or ""))
        script = [f"mkdir -p {self.root}{shared} {self.root}/opt {result}/env"]
        script += [f"mount --rbind {shared} {self.root}{shared}", f"ln -sfn {result}/env {self.root}/opt/env"]
        script += [f"mount -t proc proc {self.root}/proc", f"mount --rbind /dev {self.root}/dev"]
        script += [f"exec chroot {self.root} /bin/sh -c '{install}'"]
        return [tool("unshare"), "--mount", "/bin/sh", "-ec", "\n".join(script)]


def contents(bench: Bench) -> Contents:
    """What is needed to make ``bench.env``; makes what is missing.

    Raises:
        Unavailable: a wheel of the lock is not in the artefact cache, or a tool is missing.
    """
    need_root()
    need("mmdebstrap", "unshare", "tar", "gpgv")
    text = lock_file(bench.env).read_bytes()
    lock = load(text, source=bench.env)
    wheels = bench.kept / f"wheels-{bench.env}-{hashlib.sha256(text).hexdigest()[:12]}"
    if not (wheels / "requirements.txt").exists():
        remove(wheels)
        wheels.mkdir(parents=True)
        known = files_by_digest(artefact_cache(), lock.wheels)
        for wheel in lock.wheels:
            _link(known[wheel.digest.hex], wheels / wheel.file)
        (wheels / "requirements.txt").write_text("".join(f"{one.name}=={one.version}\n" for one in lock.wheels))
    base = _base(bench, lock)
    made = Contents(
        wheels=wheels,
        uv_cache=bench.kept / "uv",
        base=base,
        root=base.with_suffix(".root"),
        python=f"/usr/bin/python{lock.python.version}",
    )
    _warm(bench, made)
    return made


def fetch(bench: Bench) -> None:
    """Bring what is missing of the locked wheels and debs into the artefact cache, by a build that is thrown away."""
    lock = load(lock_file(bench.env).read_bytes(), source=bench.env)
    try:
        files_by_digest(artefact_cache(), (*lock.wheels, *lock.debs))
    except Unavailable:
        envbuilder("build", bench.env, "--quiet", "--store", bench.folder("fetch"), log=bench.log)
        remove(bench.work / "fetch")


def files_by_digest(artefacts: Path, wanted_files: Iterable[Artifact]) -> dict[str, Path]:
    """Where the artefact cache has each file: by the digest in the file's path, whatever the folders."""
    wanted = {artifact.digest.hex: artifact.name for artifact in wanted_files}
    found: dict[str, Path] = {}
    for folder, _, names in os.walk(artefacts):
        for name in names:
            path = Path(folder) / name
            found.update({part: path for part in (name, path.stem, path.parent.name) if part in wanted})
    if missing := [name for digest, name in wanted.items() if digest not in found]:
        raise Unavailable(
            f"the artefact cache {artefacts} lacks {len(missing)} of {len(wanted)} files ({missing[0]}, ...): "
            "build the environment once with envbuilder build"
        )
    return found


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def _base(bench: Bench, lock: Lock) -> Path:
    names = sorted(deb.name for deb in lock.debs)
    key = hashlib.sha256(
        " ".join([lock.suite, *(f"{deb.name}={deb.version}" for deb in lock.debs)]).encode()
    ).hexdigest()[:12]
    base = bench.kept / f"base-{key}.tar"
    root = base.with_suffix(".root")
    if base.exists() and root.exists():
        return base
    remove(root)
    sources = bench.work / "base.list"
    sources.write_text(_sources(lock.suite, lock.debs))
    words: list[str | Path] = [
        "--mode=root",
        "--variant=essential",
        f"--include={','.join(names)}",
        lock.suite,
        root,
        sources,
    ]
    measured([tool("mmdebstrap"), *words], log=bench.log)
    shutil.copy2(Path(__file__).resolve().parents[1] / ".venv/bin/uv", root / "usr/local/bin/uv")
    partial = base.with_suffix(".partial")
    measured([tool("tar"), "--sort=name", "--numeric-owner", "-C", root, "-cf", partial, "."], log=bench.log)
    partial.rename(base)
    return base


def _sources(suite: str, debs: Iterable[Deb]) -> str:
    """One line an archive, from the hosts that this machine's apt uses."""
    if not _SOURCES.exists():
        raise Unavailable(f"no {_SOURCES}: this bench takes the base's debs from the mirrors that it names")
    mirrors = [line.split()[1] for line in _SOURCES.read_text().splitlines() if line.startswith("URIs:")]
    by_role = {("debian-security" if "security" in mirror else "debian"): mirror for mirror in mirrors}
    suites = {"debian": (suite, f"{suite}-updates"), "debian-security": (f"{suite}-security",)}
    used = {"debian", *(deb.archive for deb in debs)} & by_role.keys()
    lines = [
        f"deb [signed-by={_KEYRING}] {by_role[role]} {one} main\n" for role in sorted(used) for one in suites[role]
    ]
    return "".join(lines)


def _warm(bench: Bench, made: Contents) -> None:
    """One installation that nobody measures: from then on uv has every wheel unpacked, the best case of a peer."""
    made.uv_cache.mkdir(parents=True, exist_ok=True)
    mark = made.wheels / ".warm"
    if mark.exists():
        return
    result = bench.folder("warm")
    measured(made.chroot(result), log=bench.log)
    subprocess.run(["rm", "-rf", str(result)], check=True)
    mark.touch()

"""Build stacks that people train and serve with, and start each with the commands that its declaration names.

    tools/breadth.py [--store DIR] [ENV...]
    tools/breadth.py --scripts

The environments are those of tests/breadth; by default all that have a lock for this host. The commands import what the
stack is for; no GPU is needed. What was built is kept in the store (.cache/breadth): 10 GB for all of them.

With --scripts nothing is built: the Debian packages of all locks, those of our own environments too and for every
platform, are fetched, and those whose maintainer scripts nobody reviewed are named.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from envbuilder.cli.app import App
from envbuilder.cli.output import Output
from envbuilder.cli.project import artifact_cache
from envbuilder.cli.settings import load_settings
from envbuilder.layer.computed import check_packages
from envbuilder.layer.deb import control_of
from envbuilder.layer.debian.maintainer import UnknownScript
from envbuilder.lock.codec import load

ROOT = Path(__file__).resolve().parents[1]
BREADTH = ROOT / "tests/breadth"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", nargs="*", metavar="ENV")
    parser.add_argument("--store", type=Path, default=ROOT / ".cache/breadth")
    parser.add_argument("--scripts", action="store_true")
    options = parser.parse_args()
    if options.scripts:
        return _check_scripts()
    lock_name = f"linux-{platform.machine()}.lock.toml"
    names = options.environments or sorted(file.parent.name for file in BREADTH.glob(f"lockfiles/*/{lock_name}"))
    failed = []
    with tempfile.TemporaryDirectory(prefix="envbuilder-breadth-") as folder:
        # In a copy: what a build on the side predicts is not to be committed.
        project = Path(folder) / "project"
        for part in ("images", "lockfiles"):
            shutil.copytree(BREADTH / part, project / part)
        for name in names:
            lock = load((project / "lockfiles" / name / lock_name).read_bytes(), source=name)
            begun = time.monotonic()
            good = _envbuilder(project, options.store, "build", name)
            built = time.monotonic()
            good = good and bool(lock.start)
            for argv in lock.start if good else ():
                good = _envbuilder(project, options.store, "run", name, "--", *argv) and good
            if not good:
                failed.append(name)
            took = f"built in {built - begun:.0f} s, started and imported in {time.monotonic() - built:.0f} s"
            print(f"{name}: {took if good else 'failed'}", flush=True)
    return 1 if failed else 0


def _check_scripts() -> int:
    settings = load_settings(project=ROOT, environ=os.environ, flags={}, uid=os.geteuid())
    cache, failed = artifact_cache(App(settings, Output(quiet=True), ROOT), os.environ), 0
    for file in sorted([*ROOT.glob("lockfiles/*/*.lock.toml"), *BREADTH.glob("lockfiles/*/*.lock.toml")]):
        lock = load(file.read_bytes(), source=file.name)
        with ThreadPoolExecutor(8) as pool:
            controls = list(pool.map(lambda deb: control_of(cache.file(deb)), lock.debs))
        try:
            check_packages(controls, allow=frozenset(lock.allow_scripts))
            said = "all known"
        except UnknownScript as error:
            said, failed = str(error), 1
        print(f"{lock.name} ({lock.platform}): {len(controls)} Debian packages: {said}", flush=True)
    return failed


def _envbuilder(project: Path, store: Path, verb: str, *words: str) -> bool:
    command = [sys.executable, "-m", "envbuilder", verb, "--store", str(store.resolve()), *words]
    return (
        subprocess.run(command, cwd=project, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode == 0
    )


if __name__ == "__main__":
    sys.exit(main())

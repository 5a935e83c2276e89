"""Two builds of one lock, in another directory, under another umask, uid, time zone, locale and hash seed: one digest.

The second build does not see the first: it has its own store, a copy of the project, and a cache whose folders
belong to another user. It may read every file (CAP_DAC_READ_SEARCH), since a checkout below /root is closed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from contents import fetch
from measure import Cost, measured
from product import COMMAND, artefact_cache, envbuilder
from record import PROJECT, Outcome, Target
from scratch import Bench, need_root, need_space, tool

#: Bytes of scratch space by environment: two stores.
SPACE = {"hello": 1_000_000_000, "standard": 6_000_000_000, "ai": 8_000_000_000}
_NOBODY = 65534


def run(bench: Bench) -> Outcome:
    need_root()
    need_space(bench.work, SPACE.get(bench.env, SPACE["ai"]))
    fetch(bench)
    first = envbuilder("build", bench.env, "--quiet", "--store", bench.work / "one", log=bench.log)
    second = _elsewhere(bench)
    same = first.stdout.strip() == second.stdout.strip()
    return Outcome(
        columns={
            "here": {**first.column(), "digest": first.stdout.strip()[-12:]},
            "elsewhere": {**second.column(), "digest": second.stdout.strip()[-12:]},
        },
        targets=[Target(name="digests that differ", limit=0, got=0 if same else 1)],
        notes=["elsewhere: other directory, uid 65534, umask 077, TZ Asia/Kathmandu, LC_ALL C, PYTHONHASHSEED 7"],
    )


def _elsewhere(bench: Bench) -> Cost:
    home = bench.folder("elsewhere")
    for name in ("images", "lockfiles"):
        shutil.copytree(PROJECT / name, home / name)
    # Hard links: no second copy of the bytes, other folders.
    subprocess.run(["cp", "-al", str(artefact_cache()), str(home / "cache")], check=True)
    for folder, _, _ in os.walk(home):
        os.chown(folder, _NOBODY, _NOBODY)
    for parent in (bench.work, *bench.work.parents):
        if PROJECT in parent.parents or parent == bench.work:
            parent.chmod(0o755)
    environ = {"TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "7", "HOME": str(home)}
    environ |= {"ENVBUILDER_CACHE": str(home / "cache"), "XDG_CACHE_HOME": str(home / "xdg")}
    capability = "+dac_read_search"
    words: list[str | Path] = [tool("setpriv"), f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    words += [f"--inh-caps={capability}", f"--ambient-caps={capability}"]
    words += [
        "/bin/sh",
        "-ec",
        'umask 077; exec "$@"',
        "sh",
        COMMAND,
        "build",
        bench.env,
        "--quiet",
        "--store",
        home / "two",
    ]
    return measured(words, log=bench.log, environ=environ, cwd=home)

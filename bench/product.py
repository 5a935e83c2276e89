"""Our side: the command as a user types it."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from measure import Cost, Failed, measured
from record import PROJECT
from scratch import Bench, Unavailable

COMMAND = PROJECT / ".venv/bin/envbuilder"

#: What each environment is started with: the packages that it is for, their version on stdout.
START = {
    "hello": "import numpy, pandas; print(numpy.__version__, pandas.__version__)",
    "standard": "import ctypes; ctypes.CDLL('libcudart.so.13'); print('libcudart.so.13')",
    "ai": "import torch; print(torch.__version__)",
}


def envbuilder(*words: str | Path, log: Path, environ: Mapping[str, str] | None = None, cwd: Path = PROJECT) -> Cost:
    """One verb, measured; its result is ``stdout`` of the cost.

    Raises:
        Unavailable: the verb is not there yet, or refuses.
    """
    if not COMMAND.exists():
        raise Unavailable("no .venv/bin/envbuilder: run make setup")
    try:
        return measured([COMMAND, *words], log=log, environ=environ, cwd=cwd)
    except Failed as error:
        raise Unavailable(f"envbuilder {words[0]} did not end well:\n{error}") from error


def result(cost: Cost) -> Any:
    """The JSON that a verb printed under ``--json``."""
    return json.loads(cost.stdout)


def lock_file(env: str, project: Path = PROJECT) -> Path:
    """The committed lock.

    Raises:
        Unavailable: there is none.
    """
    file = project / "lockfiles" / env / "linux-x86_64.lock.toml"
    if not file.exists():
        raise Unavailable(f"no lock of {env}: run .venv/bin/envbuilder lock {env}")
    return file


def copy_project(bench: Bench) -> Path:
    """Our environments and their locks in a folder of their own, that a scenario may change."""
    project = bench.folder("project")
    for name in ("images", "lockfiles"):
        shutil.copytree(PROJECT / name, project / name)
    return project


def held(declaration: str, package: str, version: str) -> str:
    """``declaration``, which then gets the ``package`` of before ``version``."""
    return re.sub(r"(?m)^requires = \[", f'requires = [\n    "{package}<{version}",', declaration, count=1)


def artefact_cache() -> Path:
    """The cache of verified wheels and debs that the command uses here."""
    default = "/var/cache/envbuilder" if os.geteuid() == 0 else str(Path.home() / ".cache/envbuilder")
    return Path(os.environ.get("ENVBUILDER_CACHE", default))


def build_to(
    env: str, *, store: Path, host: str, log: Path, project: Path = PROJECT, environ: Mapping[str, str] | None = None
) -> tuple[Cost, str]:
    """Build into ``store`` and push to the registry ``host``, as one command: its cost, and the pinned reference."""
    name = f"{host}/env/{env}:bench"
    words = ("build", env, "--to", name, "--store", store, "--project", project, "--json")
    cost = envbuilder(*words, log=log, environ=environ)
    (built,) = result(cost)
    return cost, f"{host}/env/{env}@{built['digest']}"

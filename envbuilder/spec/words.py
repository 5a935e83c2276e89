"""Words that other tools have for keys of a declaration: who comes from there is told ours. Pure.

They are of pyproject.toml and uv, pip, conda and pixi, apko, Dockerfiles and Compose, Cog, BentoML, and of the base
environments of managed services (environments.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Table of a declaration ("": the top) -> our key, or what else there is to say -> words.
_SAID: Mapping[str, Mapping[str, str]] = {
    "": {
        "did you mean 'requires' (Python) or 'base.packages' (Debian)?": "packages install",
        "requires": "dependencies install-requires libraries pip pip-packages pypi-dependencies "
        "python-packages python-requirements requirements requirements-txt",
        "base.packages": "apt apt-get apt-packages deb deb-packages debian debian-packages debs os-packages "
        "system-packages",
        "python": "interpreter python-version requires-python",
        "did you mean 'base.image' (an image) or 'extends' (an environment)?": "base-environment from image inherits "
        "parent",
        "base.image": "base-image docker-image",
        "base.suite": "codename distribution distro os release suite",
        "base.snapshot": "snapshot",
        "base.system": "system",
        "base.glibc": "glibc",
        "cuda.toolkit": "cuda-toolkit cuda-version toolkit",
        "cuda.minimum-driver": "driver minimum-driver",
        "cuda.accelerators": "accelerators compute-capability gpu gpus",
        "did you mean 'extra-indexes'? It takes roles; addresses are settings (indexes.ROLE)": "channels "
        "extra-index-url extra-index-urls find-links index index-url indexes repositories",
        "platforms": "arch architecture architectures archs",
        "env": "environ environment environment-variables envs vars variables",
        "files": "add copy data include",
        "start.commands": "command commands",
        "replace": "exclude exclude-dependencies override override-dependencies overrides",
        "pins": "freeze locked",
        "version": "environment-version tag",
        "nothing runs while an image is made: it is packages and 'files'": "build post-install run script scripts "
        "setup steps",
    },
    "base": {
        "packages": "apt debs install requires",
        "suite": "codename distribution distro name os release version",
        "image": "digest from image-name ref reference",
        "snapshot": "date timestamp",
        "interpreter": "python python-version",
        "did you mean 'requires', above all tables?": "dependencies pip python-packages requirements",
    },
    "cuda": {
        "toolkit": "cuda cuda-version version",
        "minimum-driver": "driver min-driver nvidia-driver",
        "accelerators": "arch archs arch-list capabilities compute-capability gpu gpus",
    },
    "files": {
        "source": "from src",
        "path": "dest destination dst target to",
        "mode": "chmod permissions",
    },
    "pins": {"file": "freeze path requirements source"},
    "start": {"commands": "command run trace"},
    "support": {
        "released": "begin begins from since start",
        "ends": "end end-of-life eol to until",
    },
}
_BY_WORD = {
    table: {
        word: said if " " in said else f"did you mean {said!r}?"
        for said, words in sayings.items()
        for word in words.split()
    }
    for table, sayings in _SAID.items()
}


def our_word(table: str, key: str) -> str:
    """What to say of the unknown ``key`` in the table at the path ``table``; "" where nothing is known of it."""
    place = re.sub(r"\[[0-9]+\]\Z", "", table)
    return _BY_WORD.get(place, {}).get(key.lower().replace("_", "-"), "")

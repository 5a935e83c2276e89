"""Which effects the maintainer scripts of a set of packages have; an unknown script stops the build.

A script is known when nothing is left of it after removing what debhelper generates and what does
nothing on a first installation, or when its normalised text was reviewed (``known_scripts.py``).
So a point release with the same scripts passes, and a changed script is looked at.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from envbuilder.errors import SpecError
from envbuilder.layer.debian.control import Control
from envbuilder.layer.debian.effects import Effect
from envbuilder.layer.debian.known_scripts import REVIEWED

#: The scripts that dpkg runs on a first installation.
_SCRIPTS = ("preinst", "postinst")
#: Characters of an unknown script that the error shows.
_SHOWN = 6000
#: debhelper's snippets that do nothing in an image: no init runs there, nothing is upgraded there, and
#: caches and byte-code are made on demand. Alternatives are read by alternatives.py, triggers by dpkg.
_HARMLESS_SNIPPETS = frozenset(
    (
        "dh_apparmor",
        "dh_icons",
        "dh_installalternatives",
        "dh_installdeb",  # dpkg-maintscript-helper: upgrades only
        "dh_installinit",
        "dh_installmenu",
        "dh_installsystemd",
        "dh_installsystemduser",
        "dh_installtmpfiles",
        "dh_makeshlibs",
        "dh_python3",
    )
)
_SNIPPET = re.compile(
    r"^# Automatically added by (?P<kind>\w+)[^\n]*\n.*?^# End automatically added section[^\n]*$",
    re.MULTILINE | re.DOTALL,
)
#: Lines that do nothing by themselves on a first installation.
_IDLE = re.compile(
    r"""(set\s-[eu]+
    | \.\s/usr/share/debconf/confmodule
    | dpkg-maintscript-helper\s(rm_conffile|mv_conffile|symlink_to_dir|dir_to_symlink)\s[^;|&$`]*\s--\s"\$@"
    )\Z""",
    re.VERBOSE,
)
#: Multiarch names become one, so that a review holds for every architecture.
_MULTIARCH = re.compile(r"\b(x86_64|aarch64)-linux-gnu\b")

_JAVA_HOME = re.compile(r"-openjdk-(amd64|arm64)\b")


class UnknownScript(SpecError):
    """Maintainer scripts that nobody has reviewed: their effects would be missing from the image."""

    hint = (
        "Choose another package, have its script reviewed (docs/decisions/0004-debian-without-scripts.md), or, when "
        "the image needs none of its effects, name it in base.allow-scripts."
    )


def effects_of(controls: Iterable[Control], *, allow: frozenset[str] = frozenset()) -> dict[str, tuple[Effect, ...]]:
    """Package name -> effects of its maintainer scripts.

    allow: packages whose unknown scripts are taken to have none.

    Raises:
        UnknownScript: every unknown script of the set, with its text.
    """
    known: dict[str, tuple[Effect, ...]] = {}
    unknown: list[str] = []
    for control in controls:
        reviewed = REVIEWED.get(control.package)
        scripts = [(name, control.script(name)) for name in _SCRIPTS if name in control.members]
        strange = [
            (name, text)
            for name, text in scripts
            if normalised(text) and (reviewed is None or script_digest(text) not in reviewed.scripts)
        ]
        if strange and control.package not in allow:
            unknown += [
                f"{control.package} {control.version}: {name}: a maintainer script that is not known "
                f"(digest {script_digest(text)}):\n{text[:_SHOWN]}"
                for name, text in strange
            ]
        elif reviewed is not None and not strange:
            known[control.package] = reviewed.effects
    if unknown:
        raise UnknownScript("\n".join(unknown))
    return known


def lacking(packages: Iterable[str]) -> dict[str, str]:
    """Of ``packages``, those whose scripts would make something that an image built here lacks, and what."""
    return {name: REVIEWED[name].lacks for name in sorted(packages) if name in REVIEWED and REVIEWED[name].lacks}


def normalised(script: str) -> str:
    """What is left of ``script``: no comments, blank lines, harmless snippets or idle lines."""
    text = _SNIPPET.sub(lambda found: "" if found["kind"] in _HARMLESS_SNIPPETS else found[0], script)
    lines = (line.strip() for line in text.split("\n"))
    kept = [line for line in lines if line and not line.startswith("#") and not _IDLE.match(line)]
    if kept[-1:] == ["exit 0"]:
        kept.pop()
    return _JAVA_HOME.sub("-openjdk-<architecture>", _MULTIARCH.sub("<multiarch>", "\n".join(kept)))


def script_digest(script: str) -> str:
    """The first 128 bits in hex of the sha256 of the normalised text: what a review is recorded under."""
    return hashlib.sha256(normalised(script).encode("utf-8", "surrogateescape")).hexdigest()[:32]

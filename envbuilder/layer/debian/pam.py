"""etc/pam.d/common-*: what ``pam-auth-update --package --force`` writes on a first installation.

Source: pam-auth-update of Debian's pam 1.7, functions parse_pam_profile, create_from_template,
write_profiles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from envbuilder.layer.debian.ar import BadDeb
from envbuilder.layer.debian.system import System
from envbuilder.layer.tree import Entry, file

_CONFIGS, _TEMPLATES = "usr/share/pam-configs/", "usr/share/pam/common-"
_TYPES = ("auth", "account", "password", "session", "session-noninteractive")
#: The lines of a template between which modules stand, and the name of each block.
_BLOCKS = {
    '# here are the per-package modules (the "Primary" block)': "Primary",
    '# and here are more per-package modules (the "Additional" block)': "Additional",
}
_ENDS = ("# here's the fallback if no module succeeds", "# end of pam-auth-update config")
_NO_MODULE = "[default=1]\t\t\tpam_permit.so"


def wanted(path: str) -> bool:
    """Whether the PAM configuration is made from the package file at ``path``."""
    return path.startswith((_CONFIGS, _TEMPLATES))


def pam_entries(system: System) -> Iterator[Entry]:
    """The five common files with every profile that is on by default, and the state in var/lib/pam."""
    profiles = {
        path.removeprefix(_CONFIGS): _profile(data.decode())
        for path, data in system.contents.items()
        if path.startswith(_CONFIGS) and not path.endswith("~")
    }
    names = sorted(profiles, reverse=True)
    names.sort(key=lambda name: -int(profiles[name].get("Priority", "0")))
    enabled = [profiles[name] for name in names if profiles[name].get("Default") == "yes"]
    labels = [name for name in names if profiles[name].get("Default") == "yes"]
    for kind in _TYPES:
        template = system.read(_TEMPLATES + kind).decode()
        yield file(f"etc/pam.d/common-{kind}", _filled(template, kind, enabled).encode())
        saved = "".join(
            line
            for block in ("Primary", "Additional")
            for line in _saved(dict(zip(labels, enabled, strict=True)), kind, block)
        )
        yield file(f"var/lib/pam/{kind}", saved.encode())
    yield file("var/lib/pam/seen", "".join(f"{name}\n" for name in names).encode())


def _profile(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if found := re.match(r"(\S+):\s+(.*\S)\s*$", line):
            name = found[1].removesuffix("-Final")
            fields[name] = found[2]
        elif found := re.match(r"(\S+):\s*$", line):
            name = found[1].removesuffix("-Final")
            fields[name] = ""
        elif name and line.strip():
            fields[name] = f"{fields[name]}\n{line.strip()}".strip()
    if fields.get("Session-Interactive-Only") != "yes":
        for suffix in ("-Type", "", "-Initial"):
            if f"Session{suffix}" in fields:
                fields[f"Session-noninteractive{suffix}"] = fields[f"Session{suffix}"]
    return fields


def _modules(profiles: Mapping[str, Mapping[str, str]], kind: str, block: str) -> list[tuple[str, str]]:
    """(profile, its lines) of one block; the first of a stack may have lines of its own."""
    title = kind.capitalize()
    chosen = [(name, profile) for name, profile in profiles.items() if profile.get(f"{title}-Type") == block]
    return [
        (name, (profile.get(f"{title}-Initial") if index == 0 else "") or profile.get(title, ""))
        for index, (name, profile) in enumerate(chosen)
    ]


def _filled(template: str, kind: str, enabled: list[dict[str, str]]) -> str:
    profiles = {str(index): profile for index, profile in enumerate(enabled)}
    word, output, skipping, blocks = kind.removesuffix("-noninteractive"), [], False, 0
    for line in template.splitlines():
        if skipping and not line.startswith(_ENDS):
            continue
        skipping = False
        output.append(line)
        block = next((name for start, name in _BLOCKS.items() if line.startswith(start)), "")
        if not block:
            continue
        skipping, blocks = True, blocks + 1
        lines = [item for _, text in _modules(profiles, kind, block) for item in text.split("\n") if item]
        if block == "Primary" and not lines:
            output.append(f"{word}\t{_NO_MODULE}")
        left = len(lines) - (block == "Additional")
        for number, item in enumerate(lines):
            output.append(f"{word}\t{_numbered(item, left - number)}")
    if blocks != len(_BLOCKS) or skipping:
        raise BadDeb(f"/{_TEMPLATES}{kind}: not a template of pam-auth-update")
    return "".join(f"{line}\n" for line in output)


def _numbered(line: str, jump: int) -> str:
    """``end`` in a control value becomes the number of modules to jump over."""
    found = re.match(r"((?:\[[^]]+\]|\w+)\s+\S+)\s*(.*)", line)
    if found is None:
        raise BadDeb(f"pam: not a module line: {line[:200]!r}")
    return f"{found[1].replace('end', str(jump))} {' '.join(found[2].split())}"


def _saved(profiles: Mapping[str, Mapping[str, str]], kind: str, block: str) -> Iterator[str]:
    modules = [(name, text) for name, text in _modules(profiles, kind, block) if text]
    if block == "Primary" and not modules:
        modules = [("null", _NO_MODULE)]
    for name, text in modules:
        yield f"Module: {name}\n{text}\n"

"""Awkward wheels and Debian packages, one for each rule that real ones break: for tests of ours and of others.

Every specimen is well-formed; hostile ones are elsewhere (attacks.py, fuzz.py). The same bytes on every host.
"""

from __future__ import annotations

import base64
import hashlib
import stat
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from envbuilder.layer.tree import FILE, Entry, directory, file, symlink
from envbuilder.testing.artifacts import make_wheel
from envbuilder.testing.debs import make_deb


@dataclass(frozen=True, slots=True, kw_only=True)
class Specimen:
    """An artefact as bytes: ``name`` is the package's, its version is 1.0 (wheels) or 1 (debs)."""

    name: str
    data: bytes


def wheel_zoo() -> tuple[Specimen, ...]:
    """Wheels: schemes, scripts, entry points, RECORDs, modes, namespaces, names, byte-code, depth."""
    return tuple(Specimen(name=name, data=make()) for name, make in _WHEELS.items())


def deb_zoo() -> tuple[Specimen, ...]:
    """Debian packages: merged /usr, hard links, modes, owners, devices, conffiles, triggers, alternatives, names.

    No extended attributes: dpkg takes no tar that has them.
    """
    return tuple(Specimen(name=name, data=make()) for name, make in _DEBS.items())


def _schemes() -> bytes:
    return make_wheel(
        "schemes",
        files={
            "schemes/__init__.py": b"",
            "{data}/purelib/pure.py": b"1\n",
            "{data}/platlib/plat.so": b"\x7fELF",
            "{data}/headers/a/b.h": b"int x;\n",
            "{data}/data/share/doc.txt": b"doc",
            "{data}/data/lib64/alias.txt": b"through our link lib64",
            "{data}/data/etc/schemes.conf": b"",
            "{data}/scripts/plain": b"#!/bin/sh\n",
        },
        wheel_file=b"Wheel-Version: 1.9\nRoot-Is-Purelib: false\nTag: py3-none-any\n",
    )


def _scripts() -> bytes:
    return make_wheel(
        "scripts",
        files={
            "{data}/scripts/python": b"#!python\nprint()\n",
            "{data}/scripts/options": b"#!python -u -X dev\nprint()\n",
            "{data}/scripts/windows": b"#!pythonw\r\nprint()\r\n",
            "{data}/scripts/long": b"#!python " + b"-u " * 60 + b"\nprint()\n",
            "{data}/scripts/absolute": b"#!/usr/bin/env python3\n",
            "{data}/scripts/late": b"\n#!python\n",
            "{data}/scripts/native": b"\x7fELF",
            "{data}/scripts/empty": b"",
            "{data}/scripts/latin": b"#!python\n# -*- coding: latin-1 -*-\n# \xe9\n",
        },
    )


def _points() -> bytes:
    return make_wheel(
        "points",
        files={
            "points.py": b"def main(): ...\n",
            "{data}/scripts/go": b"old wrapper",
            "{data}/scripts/go.exe": b"MZ",
            "{data}/scripts/go-script.py": b"old wrapper",
        },
        entry_points="[other]\nx = y\n[console_scripts]\ngo = points:main\nDeep-er.name = points:A.b [extra,more]\n"
        "spaced   =   points:main\n[gui_scripts]\nshow = points:show\n",
    )


def _record() -> bytes:
    """Longer digests, CRLF, quoted names, no size, and what only an installer may write."""
    info = "record-1.0.dist-info"
    wheel_file = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members = {
        "record/__init__.py": b"x = 1\n",
        'record/a, "b".txt': b"quoted",
        f"{info}/INSTALLER": b"conda\n",
        f"{info}/REQUESTED": b"",
        f"{info}/direct_url.json": b'{"url": "file:///home/someone/record", "dir_info": {}}',
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: record\nVersion: 1.0\n",
        f"{info}/WHEEL": wheel_file,
    }
    lines = []
    for number, (path, data) in enumerate(members.items()):
        algorithm = ("sha256", "sha384", "sha512")[number % 3]
        hashed = base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()
        name = '"' + path.replace('"', '""') + '"' if "," in path else path
        lines.append(f"{name},{algorithm}={hashed},{'' if number == 0 else len(data)}\r\n")
    record = ("".join(lines) + f"{info}/RECORD,,\r\n").encode()
    own = {path: data for path, data in members.items() if not path.endswith(("/METADATA", "/WHEEL"))}
    return make_wheel("record", files=own, record=record, wheel_file=wheel_file)


def _modes() -> bytes:
    names = ("modes/run.sh", "modes/tool", "modes/lib.so", "{data}/data/libexec/helper")
    files = {name: f"#!/bin/sh\n# {name}\n".encode() for name in names}
    return make_wheel("modes", files={**files, "modes/plain": b""}, executable=names)


def _namespace(part: str) -> Callable[[], bytes]:
    def make() -> bytes:
        nspkg = b"import sys, types; sys.modules.setdefault('ns', types.ModuleType('ns'))\n"
        files = {f"ns/{part}/__init__.py": part.encode() + b" = 1\n", f"ns_{part}-nspkg.pth": nspkg}
        # Both have the same licence at the same path, as Google's and Azure's packages do.
        return make_wheel(f"ns-{part}", files={**files, "ns/LICENSE": b"the same"})

    return make


def _names() -> bytes:
    decomposed = unicodedata.normalize("NFD", "café")
    return make_wheel(
        "Na.mes",
        files={
            "Na_mes/Init.py": b"1\n",
            "Na_mes/init.py": b"2\n",
            "Na_mes/café.py": "é = 1\n".encode(),
            f"Na_mes/{decomposed}.py": b"e = 2\n",
            "Na_mes/名前/__init__.py": b"",
            "Na_mes/with space, 'quote' and [glob]*?.txt": b"",
            "Na_mes/-dash": b"",
            "Na_mes/con.txt": b"",
            "Na_mes/..dots..": b"",
            "Na_mes/" + "n" * 255: b"the longest name",
        },
    )


def _bytecode() -> bytes:
    return make_wheel(
        "bytecode",
        files={
            "bytecode/__init__.py": b"x = 1\n",
            "bytecode/__pycache__/__init__.cpython-313.pyc": b"of another time",
            "bytecode/__pycache__/other.cpython-39.pyc": b"of another Python",
            "bytecode/old.pyc": b"without a source",
            "bytecode/nested/__pycache__/deep.cpython-313.pyc": b"",
            "bytecode/python2.py": b"print 'no'\n",
            "bytecode/template.py": b"{{ no }}: yes {%\n",
            "bytecode/nul.py": b"x = '\0'\n",
            "bytecode/tabs.py": b"if 1:\n\tx = 1\n        y = 2\n",
        },
    )


def _deep() -> bytes:
    return make_wheel(
        "deep", files={"deep/" + "d/" * 300 + "end.py": b"1\n", "deep/" + ("x" * 100 + "/") * 20 + "end.txt": b"x"}
    )


_WHEELS: dict[str, Callable[[], bytes]] = {
    "schemes": _schemes,
    "scripts": _scripts,
    "points": _points,
    "record": _record,
    "modes": _modes,
    "ns-one": _namespace("one"),
    "ns-two": _namespace("two"),
    "na-mes": _names,
    "bytecode": _bytecode,
    "deep": _deep,
}


def _hard(path: str, to: str) -> Entry:
    return Entry(path=path, mode=FILE | 0o755, link=to)


def _deb(name: str, *entries: Entry, **members: str) -> Callable[[], bytes]:
    fields = {"Maintainer": "Zoo <zoo@zoo.example>", "Description": "zoo"}
    texts = {member.replace("_", "-"): text for member, text in members.items()}
    return lambda: make_deb(_with_parents(entries), name=name, fields=fields, members=texts)


def _with_parents(entries: tuple[Entry, ...]) -> list[Entry]:
    """With all directories: dpkg makes no directory that a package does not have."""
    found: dict[str, Entry] = {}
    for entry in entries:
        parts = entry.path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            parent = "/".join(parts[:depth])
            found.setdefault(parent, directory(parent))
        found[entry.path] = entry
    return list(found.values())


def _owned(path: str, mode: int, uid: int, gid: int) -> Entry:
    made = file(path, path.encode())
    return Entry(path=path, mode=FILE | mode, uid=uid, gid=gid, size=made.size, open=made.open)


_ALTERNATIVES = """\
#!/bin/sh
set -e
if [ "$1" = "configure" ]; then
    update-alternatives --install /usr/bin/editor editor /usr/bin/editor-high 50 \\
        --slave /usr/share/man/man1/editor.1.gz editor.1.gz /usr/share/man/man1/editor-high.1.gz
    update-alternatives --install /usr/bin/editor editor /usr/bin/editor-low 20
fi
"""

_DEBS: dict[str, Callable[[], bytes]] = {
    "usrmerge": _deb(
        "usrmerge",
        file("bin/merged", b"#!/bin/sh\n", 0o755),
        file("sbin/admin", b"", 0o755),
        file("lib/merged/a", b"a"),
        file("usr/lib/merged/b", b"b"),
        symlink("lib/merged/up", "../../bin/merged"),
        symlink("bin/absolute", "/usr/bin/merged"),
    ),
    "hardlinks": _deb(
        "hardlinks",
        file("usr/bin/first", b"one file\n", 0o755),
        _hard("usr/bin/second", "usr/bin/first"),
        _hard("usr/lib/hardlinks/third", "usr/bin/first"),
    ),
    "modes": _deb(
        "modes",
        _owned("usr/bin/setuid", 0o4755, 0, 0),
        _owned("usr/bin/setgid", 0o2755, 0, 42),
        _owned("usr/bin/both", 0o6711, 0, 8),
        _owned("usr/lib/modes/private", 0o600, 1, 1),
        _owned("usr/lib/modes/unreadable", 0, 0, 0),
        directory("var/lib/sticky", 0o1777),
        directory("var/lib/group", 0o2775),
        directory("var/lib/closed", 0o700),
    ),
    "devices": _deb(
        "devices",
        Entry(path="usr/lib/devices/null", mode=stat.S_IFCHR | 0o666, device=(1, 3)),
        Entry(path="usr/lib/devices/loop", mode=stat.S_IFBLK | 0o660, gid=6, device=(7, 259)),
        Entry(path="usr/lib/devices/pipe", mode=stat.S_IFIFO | 0o600),
    ),
    "conffiles": _deb(
        "conffiles",
        file("etc/conffiles/main.conf", b"[main]\n"),
        file("etc/conffiles/empty.conf", b""),
        file("etc/conffiles/not-one", b"x"),
        conffiles="/etc/conffiles/main.conf\n/etc/conffiles/empty.conf\n",
    ),
    "triggers": _deb(
        "triggers",
        file("usr/share/triggers/a", b""),
        triggers="interest-noawait /usr/share/triggers\nactivate-noawait zoo\n",
    ),
    "alternatives": _deb(
        "alternatives",
        file("usr/bin/editor-low", b"#!/bin/sh\n", 0o755),
        file("usr/bin/editor-high", b"#!/bin/sh\n", 0o755),
        file("usr/share/man/man1/editor-high.1.gz", b""),
        postinst=_ALTERNATIVES,
    ),
    "names": _deb(
        "names",
        file("usr/share/names/" + "d" * 120 + "/" + "f" * 200, b"long"),
        file("usr/share/names/" + "x/" * 60 + "deep", b"deep"),
        file("usr/share/names/café", b"utf-8"),
        file("usr/share/names/a b\\c'\"*", b""),
        symlink("usr/share/names/link", "../" * 40 + "t" * 150),
        symlink("usr/share/names/dangling", "/nowhere"),
    ),
}

"""The control part of a .deb: its fields, maintainer scripts, conffiles and checksums.

Source: deb-control(5), deb-conffiles(5), deb-md5sums(5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from envbuilder.layer.debian.ar import BadDeb

#: Debian Policy 5.6.1 and 5.6.8: these become file names and lines of the dpkg database.
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+\Z")
_FIELD = re.compile(r"[!-9;-~]+\Z")
#: Members of the control archive that dpkg runs.
SCRIPTS = ("preinst", "postinst", "prerm", "postrm", "config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What a .deb says about itself.

    fields: of the control file, in its order, values as written (continuation lines kept).
    members: every other file of the control archive: name -> (permission bits, bytes).
    """

    package: str
    version: str
    architecture: str
    fields: Mapping[str, str] = field(hash=False)
    members: Mapping[str, tuple[int, bytes]] = field(hash=False)

    @property
    def info_name(self) -> str:
        """The stem of its files in ``var/lib/dpkg/info``: ``Multi-Arch: same`` packages carry their architecture."""
        same = self.fields.get("Multi-Arch") == "same"
        return f"{self.package}:{self.architecture}" if same else self.package

    @property
    def conffiles(self) -> tuple[str, ...]:
        """Absolute paths of the conffiles that the package ships."""
        return tuple(path for path, flag in self.declared_conffiles if not flag)

    @property
    def declared_conffiles(self) -> tuple[tuple[str, str], ...]:
        """(absolute path, flag) of each conffile; flag ``remove-on-upgrade`` marks one that is no longer shipped."""
        lines = (line.strip() for line in self.text("conffiles").splitlines())
        # A path may have blanks; only what stands before its '/' is a flag.
        parts = (("", line) if line.startswith("/") else tuple(line.split(None, 1)) for line in lines if line)
        return tuple((part[1], part[0]) for part in parts if len(part) == 2)

    @property
    def md5sums(self) -> Mapping[str, str]:
        """Path without leading '/' -> md5 in hex, of the regular files that are no conffiles."""
        pairs = (line.split(None, 1) for line in self.text("md5sums").splitlines())
        return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}

    def script(self, name: str) -> str:
        """The maintainer script ``name``; "" when there is none."""
        return self.text(name)

    def text(self, member: str) -> str:
        """A member of the control archive as text, "" when there is none."""
        return self.members[member][1].decode("utf-8", "surrogateescape") if member in self.members else ""


def parse_control(members: Mapping[str, tuple[int, bytes]], *, source: str) -> Control:
    """The Control in the files of a control archive.

    Raises:
        BadDeb: no control file, or one without a valid Package, Version and Architecture.
    """
    if "control" not in members:
        raise BadDeb(f"{source}: no control file")
    fields = parse_fields(members["control"][1].decode("utf-8", "surrogateescape"), source=source)
    missing = [name for name in ("Package", "Version", "Architecture") if not fields.get(name)]
    if missing:
        raise BadDeb(f"{source}: control file: no field {missing[0]}")
    if not _PACKAGE.match(fields["Package"]) or not fields["Architecture"].isalnum():
        raise BadDeb(f"{source}: control file: not a package: {fields['Package']!r} {fields['Architecture']!r}")
    return Control(
        package=fields["Package"],
        version=fields["Version"],
        architecture=fields["Architecture"],
        fields=fields,
        members={name: member for name, member in members.items() if name != "control"},
    )


def parse_fields(text: str, *, source: str) -> dict[str, str]:
    """One deb822 paragraph; later lines of a value keep their leading blank, as dpkg keeps them.

    Raises:
        BadDeb: a line that is no field, or a field that stands twice.
    """
    fields: dict[str, str] = {}
    last = ""
    for line in text.strip("\n").split("\n"):
        if line[:1] in (" ", "\t"):
            if not last:
                raise BadDeb(f"{source}: control file: starts with a continuation line")
            fields[last] += "\n" + line
            continue
        name, colon, value = line.partition(":")
        if not colon or not _FIELD.match(name) or name in fields:
            raise BadDeb(f"{source}: control file: not a field: {line[:100]!r}")
        fields[name] = value.lstrip()
        last = name
    return {name: value.rstrip() for name, value in fields.items()}

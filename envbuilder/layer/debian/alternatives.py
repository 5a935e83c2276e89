"""``update-alternatives --install`` without running it: the links and the state that it leaves.

Source: update-alternatives(1); the administrative files are as dpkg 1.22 writes them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

from envbuilder.layer.deb import merged
from envbuilder.layer.debian.ar import BadDeb
from envbuilder.layer.debian.effects import Alternative, Slave
from envbuilder.layer.debian.system import System
from envbuilder.layer.tree import Entry, file, symlink
from envbuilder.paths import entry_path, file_name


def alternatives_in(script: str, *, source: str) -> Iterator[Alternative]:
    """Every literal ``update-alternatives --install`` of a maintainer script.

    Raises:
        BadDeb: one is not literal or is malformed, so that its links cannot be known.
    """
    for command in _commands(script):
        if not re.match(r"update-alternatives\s(?!.*--(remove|auto))", command):
            continue
        try:
            words = shlex.split(re.sub(r"\s*(\|\||&&|;).*", "", command))
            words = [word for word in words[1:] if word not in ("--quiet", "--force")]
            if words[0] != "--install" or any("$" in word for word in words):
                raise ValueError
            link, name, path, priority, *rest = words[1:]
            if len(rest) % 4 or set(rest[::4]) - {"--slave"}:
                raise ValueError
            slaves = zip(rest[1::4], rest[2::4], rest[3::4], strict=True)
            yield Alternative(
                link=link,
                name=file_name(name, source=source),
                path=path,
                priority=int(priority),
                slaves=tuple(Slave(link=a, name=file_name(b, source=source), path=c) for a, b, c in slaves),
            )
        except (ValueError, IndexError):
            raise BadDeb(f"{source}: cannot read: {command[:300]}") from None


def on_architecture(choice: Alternative, architecture: str) -> Alternative:
    """``choice`` with ``<architecture>`` filled in."""

    def filled(path: str) -> str:
        return path.replace("<architecture>", architecture)

    slaves = tuple(replace(slave, link=filled(slave.link), path=filled(slave.path)) for slave in choice.slaves)
    return replace(choice, link=filled(choice.link), path=filled(choice.path), slaves=slaves)


def alternative_entries(choices: Iterable[Alternative], system: System) -> Iterator[Entry]:
    """The links below etc/alternatives, the links to them, and the state in var/lib/dpkg/alternatives."""
    groups: dict[str, list[Alternative]] = {}
    for choice in choices:
        groups.setdefault(choice.name, []).append(choice)
    for name, members in sorted(groups.items()):
        members.sort(key=lambda item: item.path)
        best = max(members, key=lambda item: item.priority)
        yield from _links(best.link, name, best.path)
        for slave in best.slaves:
            if system.exists(slave.path):
                yield from _links(slave.link, slave.name, slave.path)
        yield file(f"var/lib/dpkg/alternatives/{name}", _state(members, best.link).encode())


def _links(link: str, name: str, target: str) -> Iterator[Entry]:
    yield symlink(f"etc/alternatives/{name}", target)
    yield symlink(merged(entry_path(link, source="alternatives")), f"/etc/alternatives/{name}")


def _state(members: list[Alternative], link: str) -> str:
    names = {slave.name: slave.link for member in members for slave in member.slaves}
    lines = ["auto", link]
    for name in sorted(names):
        lines += [name, names[name]]
    lines.append("")
    for member in members:
        paths = {slave.name: slave.path for slave in member.slaves}
        lines += [member.path, str(member.priority), *(paths.get(name, "") for name in sorted(names))]
    return "\n".join(lines) + "\n\n"


def _commands(script: str) -> Iterator[str]:
    """Logical lines: continuations joined; a comment line ends the command before it, as in sh."""
    command = ""
    for raw in script.split("\n"):
        line = raw.strip()
        if line.startswith("#"):
            line = ""
        if line.endswith("\\"):
            command += line[:-1] + " "
            continue
        command += line
        if command.strip():
            yield command.strip()
        command = ""

"""Debian packages of an environment: apt decides, in a configuration of its own, against signed indexes.

Nothing of the host is touched or asked: package state, sources, preferences, pins and foreign
architectures are ours; only its proxies hold, and its credentials (``auth.conf``).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from envbuilder.digest import Digest
from envbuilder.errors import HostError, IntegrityError, SpecError, UnavailableError
from envbuilder.lock.archives import DEBIAN, SECURITY, paragraphs
from envbuilder.lock.lists import kept_lists
from envbuilder.lock.model import Deb
from envbuilder.oci.platform import Platform
from envbuilder.paths import UnsafePath, entry_path
from envbuilder.proc import Completed, ProgramFailed, ProgramMissing, Runner
from envbuilder.spec.model import Base

#: Debian's archive keys, as the package debian-archive-keyring installs them (either name, by release).
_KEYRINGS = ("usr/share/keyrings/debian-archive-keyring.gpg", "usr/share/keyrings/debian-archive-keyring.pgp")
#: Rolling suites have no -updates and no -security.
_ROLLING = frozenset({"sid", "unstable", "rc-buggy", "experimental"})
#: Seconds for apt to fetch 10 MB of indexes on a slow link.
_TIMEOUT_S = 600.0
#: One line of apt-get --print-uris: 'URI' file size hash.
_URI = re.compile(r"'([^']+)' (\S+) (\d+) SHA256:([0-9a-f]{64})\Z")
#: What apt-get says before it lists what it would remove, and a line of its --simulate.
_REMOVES, _REMOVED = "will be REMOVED:", re.compile(r"^Remv (\S+) ", re.MULTILINE)
_UNKNOWN = re.compile(
    r"(?:Unable to locate package|Package) '?([a-z0-9+.-]+)'?(?: has no installation|$)", re.MULTILINE
)

_CONFIGURATION = """\
Dir::State "{root}/state";
Dir::State::lists "{lists}";
Dir::State::status "{root}/status";
Dir::Cache "{root}/cache";
Dir::Log "{root}/log";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "{root}/empty";
Dir::Etc::sourcelist "{root}/sources.list";
Dir::Etc::sourceparts "{root}/empty";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "{root}/empty";
Dir::Etc::trusted "/dev/null";
Dir::Etc::trustedparts "{root}/empty";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Sandbox::User "";
APT::Update::Error-Mode "any";
APT::Solver "internal";
Acquire::Languages "none";
Acquire::ForceHash "SHA256";
Acquire::Retries "3";
Acquire::Check-Valid-Until "{fresh}";
pkgCacheGen::ForceEssential ",";
pkgCacheGen::ForceImportant ",";
"""


class NoKeyring(HostError):
    """Debian's archive keys are not installed, so no index can be believed."""

    hint = "Run: apt-get install debian-archive-keyring"


class UnknownSuite(SpecError):
    """An archive has no such suite."""

    hint = "Name a suite that each of the archives has; with base.snapshot, a moment of which they keep it."


class UnknownDebianPackage(SpecError):
    """The suite has no package of that name for the platform."""


class UnsatisfiableDebs(SpecError):
    """apt finds no set of packages that fulfils all dependencies."""


class UntrustedArchive(IntegrityError):
    """An index of the archive is not signed by Debian, or its signature is too old."""


class ArchiveUnavailable(UnavailableError):
    """The Debian archive did not answer."""

    hint = "Try again; or name another mirror in the settings."


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What the parent has: ``debs``, and ``paragraph`` gives the one of dpkg's status file for each (dpkg(1))."""

    debs: Sequence[Deb]
    paragraph: Callable[[Deb], str]


def resolve_debs(
    base: Base,
    platform: Platform,
    *,
    archives: Mapping[str, str],
    runner: Runner,
    environment: Mapping[str, str],
    root: Path = Path("/"),
    installed: Installed | None = None,
    anew: Collection[str] = (),
    lists: Path | None = None,
) -> tuple[Deb, ...]:
    """Every package of ``base``: the Essential set, the named ones and what they need, sorted; no layers yet.

    On what is ``installed`` apt does what it does on a running system: it stays as it is, unless a package
    that is asked for needs another version of it, or cannot be beside it.

    Args:
        base: suite and package names.
        platform: of the image, not of this host.
        archives: archive roots by role, from ``find_archives``; with ``base.snapshot`` from ``snapshot_archives``.
        runner: starts apt.
        environment: variables for apt.
        root: the host's file system.
        installed: the parent's packages.
        anew: of those, the ones that are wanted as the archive has them now.
        lists: where the archives' indexes are kept from one call to the next; None: nowhere.

    Raises:
        UnknownSuite, UnknownDebianPackage, UnsatisfiableDebs: the declaration asks for what is not there.
        UntrustedArchive, ArchiveUnavailable, NoKeyring: the archive or this host is at fault.
    """
    keyring = next((root / name for name in _KEYRINGS if (root / name).exists()), None)
    if keyring is None:
        raise NoKeyring(f"{root / _KEYRINGS[0]}: not found")
    sources = _sources(base.suite, archives, keyring)
    with (
        tempfile.TemporaryDirectory(prefix="envbuilder-apt-") as folder,
        # A moment's are asked for once.
        kept_lists(
            None if base.snapshot else lists, (_plain(sources), platform.debian), Path(folder, "lists")
        ) as listed,
    ):
        apt = _Apt(Path(folder), listed, platform, runner, environment, base.snapshot)
        there = {deb.name: deb for deb in installed.debs} if installed else {}
        status = "\n".join(map(installed.paragraph, there.values())) if installed else ""
        apt.configure(sources, status)
        apt.update(base.suite)
        # What is there and is named would be upgraded.
        wanted = [name for name in base.packages if name not in there or name in anew] if there else base.packages
        uris, removed = apt.select(base.suite, [*wanted, *anew] if there else ["?essential", *wanted], platform)
        if lost := sorted(removed & {*base.packages}):
            raise UnsatisfiableDebs(
                f"base.packages: {', '.join(lost)} of the parent cannot be beside {', '.join(wanted)}",
                hint="Leave one of them out, or extend an environment without it.",
            )
        moment = f"@{base.snapshot}" if base.snapshot else ""
        new = [replace(deb, archive=deb.archive + moment) for deb in apt.describe(uris, archives)]
        found = there | {deb.name: deb for deb in new}
        return tuple(found[name] for name in sorted(found.keys() - removed))


def _sources(suite: str, archives: Mapping[str, str], keyring: Path) -> str:
    pairs = [(archives[DEBIAN], suite)]
    if suite not in _ROLLING:
        pairs += [(archives[DEBIAN], f"{suite}-updates"), (archives[SECURITY], f"{suite}-security")]
    return "".join(f"deb [signed-by={keyring}] {uri} {name} main\n" for uri, name in pairs)


class _Apt:
    """apt with its whole world in one folder."""

    def __init__(
        self,
        folder: Path,
        lists: Path,
        platform: Platform,
        runner: Runner,
        environment: Mapping[str, str],
        snapshot: str,
    ) -> None:
        self.folder, self.runner = folder, runner
        self.environment = {**environment, "LC_ALL": "C.UTF-8"}
        # Of a snapshot one knows that it is old; its signature must hold all the same.
        fresh = "false" if snapshot else "true"
        self.configuration = _CONFIGURATION.format(root=folder, lists=lists, architecture=platform.debian, fresh=fresh)

    def run(self, *argv: str, check: bool = True) -> Completed:
        return self.runner(argv, env=self.environment, cwd=self.folder, check=check, timeout_s=_TIMEOUT_S)

    def configure(self, sources: str, status: str) -> None:
        # The host's proxies are read before our configuration hides the host's.
        try:
            proxies = self.run("apt-config", "dump", "--format", '%F "%v";%n', "Acquire::http", "Acquire::https").stdout
        except ProgramMissing as error:
            hint = "Lock on a machine or in a container with apt; building from a lock does not need it."
            raise ProgramMissing("apt-config: not found; apt chooses the Debian packages", hint=hint) from error
        for name in ("state", "cache/archives/partial", "log", "empty"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "status").write_text(status, "utf-8", "surrogateescape")
        (self.folder / "sources.list").write_text(sources)
        (self.folder / "apt.conf").write_text(self.configuration + proxies.decode())
        self.environment["APT_CONFIG"] = str(self.folder / "apt.conf")

    def update(self, suite: str) -> None:
        try:
            done = self.run("apt-get", "update", check=False)
        except ProgramFailed as error:
            raise ArchiveUnavailable(f"Debian archive, suite {suite!r}: no index within {_TIMEOUT_S} s") from error
        if done.status == 0:
            return
        said = (done.stdout + done.stderr).decode(errors="replace")
        problems = "\n".join(line for line in said.splitlines() if line.startswith(("Err:", "E:", "W:", "  ")))
        if (
            "NO_PUBKEY" in said
            or "not signed" in said
            or "EXPKEYSIG" in said
            or "is not valid yet" in said
            or "is expired" in said
        ):
            raise UntrustedArchive(f"Debian archive, suite {suite!r}: no valid signature\n{_plain(problems)}")
        if "does not have a Release file" in said and "404" in said:
            missing = "\n".join(line for line in said.splitlines() if "does not have a Release file" in line)
            raise UnknownSuite(f"base.suite: a Debian archive has no suite {suite!r}\n{_plain(missing)}")
        if "Failed to fetch" in said or "Release file" in said:
            raise ArchiveUnavailable(f"Debian archive, suite {suite!r}: no index\n{_plain(problems)}")
        raise ProgramFailed(["apt-get", "update"], done.status, problems)

    def select(self, suite: str, wanted: Sequence[str], platform: Platform) -> tuple[list[re.Match[str]], set[str]]:
        """What apt would fetch to install ``wanted``, and the names of what it would remove."""
        install = ("apt-get", "install", "-q", "--yes")
        done = self.run(*install, "--print-uris", *wanted, check=False)
        said = (done.stdout + done.stderr).decode(errors="replace")
        unknown = _UNKNOWN.findall(said)
        if done.status and unknown:
            names = ", ".join(sorted(set(unknown)))
            raise UnknownDebianPackage(f"base.packages: {suite} has no package {names} for {platform}")
        if done.status:
            explanation = said.rpartition("may help to resolve the situation:")[2].strip()[-4000:]
            raise UnsatisfiableDebs(f"base.packages: apt finds no solution in {suite}\n{explanation}")
        lines = [line for line in done.stdout.decode().splitlines() if line.startswith("'")]
        matches = [match for line in lines if (match := _URI.match(line))]
        if len(matches) != len(lines):
            raise UntrustedArchive(f"Debian archive, suite {suite!r}: packages without a SHA256")
        removed = (
            _REMOVED.findall(self.run(*install, "--simulate", *wanted).stdout.decode()) if _REMOVES in said else []
        )
        return matches, {*removed}

    def describe(self, uris: list[re.Match[str]], archives: Mapping[str, str]) -> list[Deb]:
        wanted = {sha256: (uri, int(size)) for uri, _, size, sha256 in (match.groups() for match in uris)}
        names = ["=".join(unquote(match[2]).split("_")[:2]) for match in uris]
        if not names:
            return []
        shown = self.run("apt-cache", "show", *names).stdout.decode()
        debs: dict[str, Deb] = {}
        for fields in paragraphs(shown):
            uri, size = wanted.get(fields.get("sha256", ""), ("", 0))
            if uri and fields["package"] not in debs:
                debs[fields["package"]] = _deb(fields, uri, size, archives)
        if len(debs) != len(wanted):
            raise UntrustedArchive(f"Debian archive: {len(wanted)} packages chosen, {len(debs)} described")
        return list(debs.values())


def _deb(fields: Mapping[str, str], uri: str, size: int, archives: Mapping[str, str]) -> Deb:
    there = [role for role, archive in archives.items() if unquote(uri) == unquote(f"{archive}/{fields['filename']}")]
    if not there:
        raise UntrustedArchive(f"{fields['package']}: lies in none of the archives")
    try:
        file = entry_path(fields["filename"], source=f"Debian package {fields['package']}")
    except UnsafePath as error:
        raise UntrustedArchive(str(error)) from error
    return Deb(
        name=fields["package"],
        version=fields["version"],
        architecture=fields["architecture"],
        file=file,
        digest=Digest("sha256:" + fields["sha256"]),
        size=size,
        layer="",
        # "Source: name (version)" when the versions differ; absent when the names are equal.
        source=fields.get("source", fields["package"]).split(" ")[0],
        archive=there[0],
    )


def upstream_version(version: str) -> str:
    """The upstream part of a Debian ``version``: without epoch and revision (Debian policy 5.6.12)."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0].split("+", 1)[0].split("~", 1)[0]


def _plain(said: str) -> str:
    """``said`` without credentials that a mirror's address may hold, cut to a readable length."""
    return re.sub(r"//[^/@\s]*@", "//", said)[-4000:]

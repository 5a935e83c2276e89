"""References: the one noun of the command line, in the forms that people already write.

An environment name (``ai``, ``ai@2``), a registry reference (``host/name:tag``,
``host/name@sha256:...``), an image layout (``oci:DIR[:TAG]``), an archive
(``oci-archive:FILE[:TAG]``) or an image of a Docker engine (``docker-daemon:NAME:TAG``).
Grammar of names and tags: OCI distribution-spec 1.1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from envbuilder.digest import Digest
from envbuilder.errors import SpecError

_ENVIRONMENT = re.compile(r"([a-z0-9]+(?:[._-][a-z0-9]+)*)(?:@([A-Za-z0-9][A-Za-z0-9._+-]*))?\Z")
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*\Z")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}\Z")
_HOST = re.compile(
    r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?\Z"
)
#: Many clients cap ``host/name`` at 255 characters (registry.md 2).
_NAME_MAX = 255


class InvalidReference(SpecError):
    """A text that should name an image or environment does not."""

    hint = (
        "Write an environment (ai, ai@2), host/name:tag, host/name@sha256:..., oci:DIR[:TAG], oci-archive:FILE[:TAG] "
        "or docker-daemon:NAME:TAG."
    )


@dataclass(frozen=True, slots=True)
class EnvironmentName:
    """An environment of the project's ``images/``; ``version`` is "" for the declared one."""

    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name


@dataclass(frozen=True, slots=True)
class RegistryReference:
    """``host[:port]/repository`` with a tag, a digest or both; the digest decides."""

    host: str
    repository: str
    tag: str = ""
    digest: Digest | None = None

    @property
    def name(self) -> str:
        """``host/repository``."""
        return f"{self.host}/{self.repository}"

    def at(self, digest: Digest) -> RegistryReference:
        """The same repository, pinned to ``digest``."""
        return RegistryReference(self.host, self.repository, "", digest)

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


@dataclass(frozen=True, slots=True)
class LayoutReference:
    """An OCI image layout directory; ``tag`` is a tag, a digest or "" for its only image."""

    directory: Path
    tag: str = ""

    def __str__(self) -> str:
        return f"oci:{self.directory}" + (f":{self.tag}" if self.tag else "")


@dataclass(frozen=True, slots=True)
class ArchiveReference:
    """A tar file that holds an OCI image layout."""

    file: Path
    tag: str = ""

    def __str__(self) -> str:
        return f"oci-archive:{self.file}" + (f":{self.tag}" if self.tag else "")


@dataclass(frozen=True, slots=True)
class DaemonReference:
    """An image of a Docker engine, as ``docker images`` calls it: ``NAME:TAG``, NAME with a host or without."""

    name: str

    def __str__(self) -> str:
        return f"docker-daemon:{self.name}"


Reference: TypeAlias = EnvironmentName | RegistryReference | LayoutReference | ArchiveReference | DaemonReference


def parse_reference(text: str) -> Reference:
    """What ``text`` names.

    Raises:
        InvalidReference: none of the forms in the module's docstring.
    """
    if text.startswith("oci:"):
        path, tag = _path_and_tag(text, text.removeprefix("oci:"))
        return LayoutReference(Path(path), tag)
    if text.startswith("oci-archive:"):
        path, tag = _path_and_tag(text, text.removeprefix("oci-archive:"))
        return ArchiveReference(Path(path), tag)
    if text.startswith("docker-daemon:"):
        return DaemonReference(_daemon_name(text))
    if "/" not in text:
        if match := _ENVIRONMENT.match(text):
            return EnvironmentName(match[1], match[2] or "")
        # A tag of the store itself, as build --flavour says it.
        hint = f"Name it by its place, oci:STORE:{text}; 'envbuilder doctor' says where the store is."
        raise InvalidReference(
            f"reference: not an environment name: {text[:300]!r}", hint=hint if text[:1] == "_" and is_tag(text) else ""
        )
    return _registry(text)


def check_tag(tag: str) -> str:
    """``tag`` if the distribution-spec allows it.

    Raises:
        InvalidReference: it does not.
    """
    if not is_tag(tag):
        raise InvalidReference(f"reference: not a tag: {tag[:140]!r}")
    return tag


def is_tag(text: str) -> bool:
    """Whether the distribution-spec allows ``text`` as a tag."""
    return bool(_TAG.match(text))


def _path_and_tag(text: str, rest: str) -> tuple[str, str]:
    path, tag = rest, ""
    head, at, digest = rest.rpartition(":sha256:")
    if at:
        path, tag = head, str(Digest.parse("sha256:" + digest))
    else:
        head, colon, last = rest.rpartition(":")
        if colon and "/" not in last:
            path, tag = head, last
            if not _TAG.match(tag):
                raise InvalidReference(f"reference: not a tag: {tag!r} in {text!r}")
    if not path:
        raise InvalidReference(f"reference: no path in {text!r}")
    return path, tag


def _daemon_name(text: str) -> str:
    """``NAME:TAG``; skopeo wants the tag, too, and ``latest`` is what people forget to think about."""
    name, colon, tag = text.removeprefix("docker-daemon:").rpartition(":")
    host, slash, path = name.partition("/")
    has_host = slash and ("." in host or ":" in host or host == "localhost") and _HOST.match(host)
    if not colon or not _TAG.match(tag) or not _REPOSITORY.match(path if has_host else name):
        raise InvalidReference(f"reference: want docker-daemon:NAME:TAG, got {text[:300]!r}")
    return f"{name}:{tag}"


def _registry(text: str) -> RegistryReference:
    host, _, rest = text.partition("/")
    rest, _, digest_text = rest.partition("@")
    repository, colon, tag = rest.partition(":")
    if not ("." in host or ":" in host or host == "localhost") or not _HOST.match(host):
        raise InvalidReference(f"reference: want a registry host before the first '/', got {host!r} in {text!r}")
    if not _REPOSITORY.match(repository):
        raise InvalidReference(f"reference: not a repository name: {repository!r} in {text!r}")
    if colon and not _TAG.match(tag):
        raise InvalidReference(f"reference: not a tag: {tag!r} in {text!r}")
    if len(host) + 1 + len(repository) > _NAME_MAX:
        raise InvalidReference(f"reference: name over {_NAME_MAX} characters: {text[:80]!r}...")
    digest = Digest.parse(digest_text) if digest_text else None
    if not tag and not digest:
        tag = "latest"
    return RegistryReference(host, repository, tag, digest)

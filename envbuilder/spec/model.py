"""EnvSpec: what the user asked for, normalised, with a digest over all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envbuilder.digest import Digest, canonical_json
from envbuilder.oci.platform import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The Debian system below the Python packages."""

    suite: str
    packages: tuple[str, ...] = ()  # sorted


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuda:
    """The CUDA axis that is asked for: a toolkit series and the oldest driver that runs it."""

    toolkit: str  # "13.2" or "13"
    minimum_driver: str = ""
    accelerators: tuple[str, ...] = ()  # compute capabilities such as "9.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRule:
    """One file of the project that goes into the image."""

    source: str  # relative to the environment's folder
    path: str  # tree path
    mode: int  # permission bits
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """When the environment version was released and until when it is supported (ISO dates)."""

    released: str = ""
    ends: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """One environment as declared. Key order and comments of its file do not show here.

    requires, constraints: PEP 508, sorted, names normalised.
    index: role of the Python index; extra_indexes: roles in order.
    start: commands whose start-up is traced, each an argv.
    """

    name: str
    version: str
    extends: str = ""
    python: str = ""  # "3.13"; "" only with extends
    base: Base | None = None  # None only with extends
    cuda: Cuda | None = None
    requires: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    extra_indexes: tuple[str, ...] = ()
    files: tuple[FileRule, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    start: tuple[tuple[str, ...], ...] = ()
    support: Support = field(default_factory=Support)
    platforms: tuple[Platform, ...] = (Platform("x86_64"),)

    @property
    def digest(self) -> Digest:
        """sha256 of the canonical JSON of every field."""
        return Digest.of(canonical_json(_plain(self)))


def _plain(value: object) -> object:
    if isinstance(value, Digest | Platform):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value

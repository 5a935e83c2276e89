"""EnvSpec: what the user asked for, normalised, with a digest over all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from envbuilder.digest import Digest, canonical_json
from envbuilder.oci.platform import Platform

#: A field that came after locks were made: at its default it does not show in the digest, so that no lock goes stale.
_LATER = {"later": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system below the Python packages that envbuilder does not make: what a lock must know of it.

    image: where it is, an OCI reference; "" when only its properties are known. With an image each of them may be ""
        too: it is read from the image then.
    """

    name: str = ""  # "ubuntu-24.04": ID and VERSION_ID of its /etc/os-release
    interpreter: str = ""  # "3.12.3"
    glibc: str = ""  # "2.39"; the image may have a newer one
    image: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The system below the Python packages: Debian packages of ``suite``, or ``system``, which is made elsewhere.

    With ``extends`` only ``packages`` and ``allow_scripts`` may be there: they are added to the parent's.
    allow_scripts: packages whose maintainer scripts nobody reviewed, and that are taken to do nothing.
    snapshot: the moment at which the suite is taken, "20261101T000000Z"; "" for now.
    """

    suite: str = ""
    packages: tuple[str, ...] = ()  # sorted
    system: System | None = field(default=None, metadata=_LATER)
    allow_scripts: tuple[str, ...] = field(default=(), metadata=_LATER)  # sorted
    snapshot: str = field(default="", metadata=_LATER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuda:
    """The CUDA axis that is asked for: a toolkit series and the oldest driver that runs it."""

    toolkit: str  # "13.2" or "13"
    minimum_driver: str = ""
    accelerators: tuple[str, ...] = ()  # compute capabilities such as "9.0"
    allow_twice: tuple[str, ...] = field(default=(), metadata=_LATER)  # libraries that may be there for two majors


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """An environment that exists, as ``pip freeze`` lists it: each version is wanted as it stands.

    local: label of a local version -> role of the index that has builds so labelled.
    public: whether the public build is taken where that index or build is not to be had.
    """

    versions: tuple[tuple[str, str], ...]  # (normalised name, version), sorted
    local: Mapping[str, str] = field(default_factory=dict, hash=False)
    public: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """A package that is not taken as it is asked for: ``instead`` is taken, or nothing."""

    name: str  # normalised
    instead: str  # PEP 508, or ""
    reason: str


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
    extra_indexes: roles that are searched before the default index, in order.
    sources: name of a package, or a pattern with '*' -> role of the one index that it may come from.
    start: commands whose start-up is traced, each an argv.
    allow_records: Python packages whose RECORD may be wrong: normalised names, sorted.
    bytecode: whether modules are compiled into the image.
    leave_out: Python package, normalised -> files of it that are not installed, as its RECORD lists them, sorted.
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
    pins: Pins | None = field(default=None, metadata=_LATER)
    replaced: tuple[Replacement, ...] = field(default=(), metadata=_LATER)  # sorted by name
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, metadata=_LATER)
    allow_records: tuple[str, ...] = field(default=(), metadata=_LATER)
    bytecode: bool = field(default=True, metadata=_LATER)
    leave_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False, metadata=_LATER)

    @property
    def digest(self) -> Digest:
        """sha256 of the canonical JSON of every field but ``platforms``: which locks there are decides none of them."""
        # Under the name and value that every lock before 2026-12 was made with.
        return Digest.of(canonical_json({**_fields(self), "platforms": ["linux/x86_64"]}))


def _fields(value: Any) -> dict[str, object]:
    found = {}
    for each in fields(value):
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        item = getattr(value, each.name)
        if not (each.metadata.get("later") and item == default):
            found[each.name] = _plain(item)
    return found


def _plain(value: object) -> object:
    if isinstance(value, Digest | Platform):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return _fields(value) if hasattr(value, "__dataclass_fields__") else value

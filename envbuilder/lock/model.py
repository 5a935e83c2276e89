"""Lock: the exact bytes an environment is made of, and the layer each of them goes to.

Indexes and archives stand by role, never by host (decision 10).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from envbuilder.digest import Digest
from envbuilder.oci.platform import Platform


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One wheel: ``file`` is its file name, ``index`` the role of the index that has it.

    recorded: whether its files must be those that its RECORD lists; not where the declaration allows a wrong one.
    without: files that are not installed, as RECORD lists them, sorted.
    """

    name: str  # normalised, PEP 503
    version: str
    file: str
    digest: Digest
    size: int  # bytes
    layer: str
    index: str = "default"
    recorded: bool = True
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Deb:
    """One Debian package: ``file`` is its path below the root of the archive ``archive``.

    archive: ``debian`` or ``debian-security``; behind an ``@`` the moment of the snapshot that it was chosen from.
    source: the source package's name, without version.
    """

    name: str
    version: str
    architecture: str  # "amd64" or "all"
    file: str
    digest: Digest
    size: int  # bytes
    layer: str
    source: str
    archive: str = "debian"


Artifact: TypeAlias = Wheel | Deb


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """The Python of the image: Debian's, at ``/usr/bin/python<version>``."""

    version: str  # "3.13"
    tag: str  # "cp313": interpreter tag of wheels


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaAxis:
    """CUDA as locked: the toolkit that the wheels bring and the oldest driver that runs it.

    twice: packages that stand beside the same library for another CUDA, because the declaration allows it.
    """

    toolkit: str  # "13.2"
    minimum_driver: str
    accelerators: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A package that the parent has at ``before`` and this image at ``after``; "" when it has it no more.

    coupled: others are compiled against it (torch, numpy, CUDA, libc6): test what was built against ``before``.
    deb: whether it is a Debian package.
    """

    name: str
    before: str
    after: str
    coupled: bool = False
    deb: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The environment that this one extends, by name and lock digest, and what is not as it is there."""

    name: str
    lock_digest: Digest
    changed: tuple[Changed, ...] = ()  # sorted by name, Python packages first


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitution:
    """A package that was asked for as ``wanted`` and is here as ``got``: a version, a name and version, or ""."""

    name: str
    wanted: str
    got: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseLayer:
    """A layer of an image of others, taken as it is. by: what its image's history says that made it."""

    digest: Digest
    size: int  # bytes, as stored
    media_type: str
    diff_id: Digest
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """An image of others that an environment is laid over, with all of it that shows in ours.

    manifest, config: of its platform. python: absolute path of its interpreter, no link.
    env, labels: (name, value), in the order of the image; these and the rest are of its config.
    """

    manifest: Digest
    config: Digest
    python: str
    layers: tuple[BaseLayer, ...]
    env: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    entrypoint: tuple[str, ...] = ()
    working_dir: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignSystem:
    """A system below the Python packages that no layer here makes: what it must be.

    interpreter: full version of its Python. image: OCI reference by digest, or "".
    asked: how the declaration names the image, where that is no digest. base: the image, if there is one.
    """

    name: str
    interpreter: str
    image: str = ""
    asked: str = ""
    base: BaseImage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """How new artefacts are given to layers; chosen at the first lock and kept from then on.

    threshold: bytes of a layer; an artefact that makes as many or more has its own.
    wheel_buckets, deb_buckets: number of layers that share the rest, by hash of the name.
    """

    threshold: int = 5_000_000
    wheel_buckets: int = 16
    deb_buckets: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedFile:
    """A file of the project that goes into the image; ``source`` is relative to the environment's folder."""

    source: str
    path: str
    mode: int
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """Everything an image is made of. ``codec.dump(lock)`` is one byte string; its sha256 names the lock.

    layers: ids, base first: the parent's whole list, then ``<name>/...``, last ``<name>/top``,
        the computed layer, which no artefact names.
    wheels, debs: sorted by name; every ``layer`` is an id of ``layers``. With a parent they
        hold its artefacts too: this is the full content of the image.
    env: variables of the image. start: commands whose start-up is traced.
    system: what stands below instead of ``suite``, ``base`` and ``debs``, which are then empty. The layers of its
        image are the first of ``layers``, ``<name>/base-NN``.
    allow_scripts: Debian packages whose maintainer scripts are unknown and taken to do nothing.
    substitutions: what is not as it was asked for, sorted by name.
    bytecode: whether modules are compiled into the environment's own layers.
    """

    name: str
    version: str
    platform: Platform
    spec_digest: Digest
    python: Interpreter
    suite: str  # Debian suite
    base: tuple[str, ...] = ()  # Debian packages asked for by name, sorted; the parent's with a parent
    glibc: str  # version of the locked libc6, "2.41": the highest manylinux that fits
    layers: tuple[str, ...]
    wheels: tuple[Wheel, ...]
    debs: tuple[Deb, ...]
    files: tuple[LockedFile, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    start: tuple[tuple[str, ...], ...] = ()
    cuda: CudaAxis | None = None
    parent: Parent | None = None
    partition: Partition = field(default_factory=Partition)
    system: ForeignSystem | None = None
    allow_scripts: tuple[str, ...] = ()
    substitutions: tuple[Substitution, ...] = ()
    bytecode: bool = True

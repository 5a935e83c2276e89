"""Target: a place that holds content by digest and names some of it by tag.

Implementers: ``MemoryTarget``, ``LayoutTarget`` (the embedded default), ``ArchiveTarget``,
``RegistryTarget``. Each is held to ``envbuilder.testing.checks.check_target``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol, runtime_checkable

from envbuilder.digest import Descriptor
from envbuilder.errors import RefusedError, UnavailableError
from envbuilder.store.pace import Pace

#: Opens the same bytes anew at each call: a body must be re-openable (token refresh, retry, fallback).
Opener = Callable[[], BinaryIO]


class NotFound(RefusedError):
    """A target does not hold what was asked for; asking again gives the same answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """``size`` bytes of ``file`` from ``offset`` on, which nobody has looked at."""

    file: BinaryIO
    offset: int
    size: int


@runtime_checkable
class FileStream(Protocol):
    """What a stream of content that lies in a file may offer besides: to be sent by the system, without being read."""

    def spans(self, offset: int, size: int) -> Iterator[Span] | None:
        """The file's own bytes, in parts that are sent before the next is asked for; None: there is no such file.

        Only for who hands them to somebody that compares the digest: they are unverified.
        """


class MissingChildren(UnavailableError):
    """A target refuses a manifest because it lacks something that the manifest names: pushed again, it has it."""


class ShortRange(UnavailableError):
    """A target gave fewer bytes of a range than were asked for, or the range ends behind the content."""


@runtime_checkable
class Target(Protocol):
    """Content by digest, tags on some of it. Every method may block; all are thread-safe.

    ``name`` says which target this is, for messages (``oci:DIR``, ``host/repository``).
    """

    @property
    def name(self) -> str: ...

    def has(self, what: Descriptor) -> bool:
        """Whether the content is here, whole and verified when it was stored."""

    def fetch(self, what: Descriptor) -> BinaryIO:
        """A stream that ends with an error unless it is exactly ``what``; the caller closes it.

        Raises:
            NotFound: it is not here. DigestMismatch: from ``read``.
        """

    def push(self, what: Descriptor, content: Opener) -> None:
        """Store content; a no-op when it is here already. Nothing is left behind on failure.

        Raises:
            DigestMismatch: the content is not ``what``.
        """

    def lookup(self, tag: str) -> Descriptor:
        """What ``tag`` names; a digest in place of a tag gives the manifest of that digest.

        Raises:
            NotFound: no such tag.
        """

    def tag(self, what: Descriptor, tag: str) -> None:
        """Let ``tag`` name the manifest ``what``, which is here already."""


@runtime_checkable
class TaggingTarget(Target, Protocol):
    """A target that stores a manifest and its tag in one step, and says cheaply whether that was done before."""

    def is_tagged(self, what: Descriptor, tag: str) -> bool:
        """Whether ``tag`` names ``what`` there already."""

    def push_tagged(self, what: Descriptor, data: bytes, tag: str) -> None:
        """Store the manifest ``data`` as ``tag``.

        Raises:
            MissingChildren: something that it names is not here.
        """


@runtime_checkable
class ForgetfulTarget(Protocol):
    """A target that answers ``has`` from memory: others may have removed what it remembers."""

    def forget(self) -> bool:
        """Ask anew from now on; whether anything was only remembered."""


@runtime_checkable
class MountingTarget(Protocol):
    """A target that may take content from a neighbour of its own in place of being sent it."""

    def may_mount(self, what: Descriptor) -> bool:
        """Whether a neighbour was seen to have it; a promise of nothing."""


@runtime_checkable
class PacedTarget(Protocol):
    """A target that says how much may be moved at a time."""

    @property
    def pace(self) -> Pace: ...


@runtime_checkable
class HostedTarget(Protocol):
    """A target behind a server that others use too."""

    @property
    def host(self) -> str:
        """The server that is asked first, ``host`` or ``host:port``."""


@runtime_checkable
class RangeTarget(Target, Protocol):
    """A target that can give a part of some content."""

    def fetch_range(self, what: Descriptor, offset: int, size: int) -> bytes:
        """Bytes ``offset`` to ``offset + size`` of ``what``, unverified: the chunk index checks them.

        Raises:
            NotFound: it is not here. ShortRange: fewer bytes came.
        """


@runtime_checkable
class PartsTarget(Protocol):
    """What a RangeTarget may offer besides: neighbouring parts one by one, for a reader that waits for the first."""

    def fetch_parts(self, what: Descriptor, offset: int, sizes: Sequence[int]) -> Iterator[bytes]:
        """Parts of ``sizes`` bytes of ``what``, one behind the other from ``offset`` on, each as soon as it is here.

        Raises:
            as ``fetch_range``, at the first part or a later one; what was given before is good.
        """


@runtime_checkable
class SiblingTarget(Protocol):
    """A target that is one repository of several."""

    def sibling(self, repository: str) -> Target:
        """The ``repository`` beside it, to read from; whether there is one shows when it is read."""


@runtime_checkable
class SerialTarget(Target, Protocol):
    """A target that is one stream, such as an archive: filled in one order, there only once it is finished."""

    def finish(self, root: Descriptor) -> None:
        """Let the target appear, with ``root`` as its image; nothing can be pushed any more.

        Raises:
            NotFound: ``root`` was not pushed.
        """

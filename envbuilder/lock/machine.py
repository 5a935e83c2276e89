"""This machine as locking sees it: how it reaches indexes and archives, and uv with just that (decision 10)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envbuilder.digest import Digest
from envbuilder.errors import HostError, SpecError
from envbuilder.lock.download import Http, fetch_size, headers_for, http_pool
from envbuilder.lock.model import Deb, ForeignSystem
from envbuilder.lock.settings import Indexes, address_of, folder_of, is_folder
from envbuilder.lock.uv import Uv
from envbuilder.oci.platform import Platform
from envbuilder.proc import Runner
from envbuilder.spec.model import EnvSpec


class UnknownIndex(HostError):
    """The declaration names an index role that this machine's settings do not have."""


def _no_base(image: str, python: str, platform: Platform) -> tuple[ForeignSystem, str]:
    raise SpecError(f"base {image}: nothing here reads images for Python {python} on {platform}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """This machine's configuration, as far as locking needs it (decision 10).

    environment: variables for uv and apt.
    bytes_of: fetches the file at an address with these headers: its digest and size, None when it cannot be had.
    distrust: whether files of other indexes than the default one are fetched and hashed when they are new.
    indexes: Python indexes by role, from ``read_python_indexes``.
    mirrors: Debian archive roots by role; what is missing is looked for on the host.
    lists: folder where indexes of those are kept; None: they are fetched each time.
    status_of: a Debian package's paragraph in dpkg's status file; it may fetch the package.
    chosen: told of each wheel that is new in a lock, where it is, and the headers to ask for it with.
    base_of: what the image that a declaration names is, and its glibc: ``(image, python, platform)``; it fetches it.
    """

    runner: Runner
    environment: Mapping[str, str]
    indexes: Indexes
    mirrors: Mapping[str, str] = field(default_factory=dict)
    lists: Path | None = None
    root: Path = Path("/")
    bytes_of: Callable[[str, Mapping[str, str]], tuple[Digest, int] | None] = lambda _url, _headers: None
    distrust: bool = False
    status_of: Callable[[Deb], str] = lambda _deb: ""
    chosen: Callable[[Digest, str, Mapping[str, str]], None] = lambda _digest, _url, _headers: None
    base_of: Callable[[str, str, Platform], tuple[ForeignSystem, str]] = _no_base


def uv_of(spec: EnvSpec, machine: Machine, *, sources: Iterable[str] = ()) -> Uv:
    """How uv is started on ``machine`` for ``spec``; ``sources`` are roles that are wanted beside its own.

    Raises:
        UnknownIndex: see there.
    """
    roles = {*spec.extra_indexes, *spec.sources.values(), *sources}
    if missing := sorted(role for role in roles if role not in machine.indexes.all):
        raise UnknownIndex(
            f"{spec.name}: no index is configured for {', '.join(missing)}",
            hint=f"Set indexes.{missing[0]} in envbuilder.toml, or name an index so in uv.toml.",
        )
    http = Http(pool=http_pool(machine.environment), wait=lambda _: None)

    def headers(url: str) -> Mapping[str, str]:
        # Of the indexes' credentials, only those of the file's own origin are sent.
        return max((headers_for(url, address_of(index)) for index in machine.indexes.all.values()), key=len)

    def size_of(url: str) -> int | None:
        return folder_of(url).stat().st_size if is_folder(url) else fetch_size(http, url, headers(url))

    return Uv(
        runner=machine.runner,
        environment=machine.environment,
        indexes=machine.indexes,
        extra=spec.extra_indexes,
        size_of=size_of,
        bytes_of=lambda url: machine.bytes_of(url, headers(url)),
        distrust=machine.distrust,
        chosen=lambda digest, url: machine.chosen(digest, url, headers(url)),
    )

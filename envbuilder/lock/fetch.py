"""ArtifactCache: verified files of wheels and debs on this machine, fetched when they are missing.

Layout: ``<directory>/sha256/<first two digits>/<64 digits>``; ``.partial`` beside it while it comes, locked by
the process that brings it. A file's content is checked once, when it enters, and is read-only from then on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import IO
from urllib.parse import quote

import urllib3
from packaging.utils import canonicalize_name

from envbuilder.digest import Digest, DigestMismatch
from envbuilder.errors import HostError
from envbuilder.lock.archives import SNAPSHOT, at, setting_hint
from envbuilder.lock.download import (
    ArtifactGone,
    Http,
    copy_file,
    download,
    fetch_page,
    fetch_size,
    headers_for,
    http_pool,
    without_credentials,
)
from envbuilder.lock.model import Artifact, Wheel
from envbuilder.lock.settings import address_of, folder_of, is_folder, is_page
from envbuilder.lock.simple import ACCEPT, IndexFile, parse_page
from envbuilder.paths import entry_path, file_name
from envbuilder.store.cache import is_cached

#: Gets an artefact and how many more of its bytes are here (negative: some were thrown away).
Progress = Callable[[Artifact, int], None]


class CacheUnwritable(HostError):
    """The artefact cache cannot be written: a full or read-only disk, or missing rights."""


class UnknownRole(HostError):
    """A lock names an index or archive that this machine's settings do not have."""


class ArtifactCache:
    """An ArtifactSource over a folder, the Python indexes and the Debian mirrors. Thread-safe, and safe
    among processes that share the folder.
    """

    def __init__(
        self,
        directory: Path,
        *,
        indexes: Mapping[str, str],
        mirrors: Mapping[str, str],
        pool: urllib3.PoolManager | None = None,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._directory = directory
        self._indexes, self._mirrors = indexes, mirrors
        self._stop = threading.Event()
        self._http = Http(pool=pool or http_pool({}), wait=wait, stopped=self._stop.is_set)
        self._pages: dict[tuple[str, str], dict[str, IndexFile]] = {}

    def path(self, digest: Digest) -> Path:
        """Where the content named ``digest`` stands once it is here."""
        return self._directory / "sha256" / digest.hex[:2] / digest.hex

    def has(self, artifact: Artifact) -> bool:
        """Whether the artefact is here; nothing is fetched. What is asked for counts as used."""
        return is_cached(self.path(artifact.digest), artifact.size)

    def file(self, artifact: Artifact, *, progress: Progress = lambda _artifact, _size: None) -> Path:
        """A read-only local file with the artefact's bytes, fetched if need be.

        Raises:
            DigestMismatch: the source gave other bytes. ArtifactGone: it no longer has the file.
            UnavailableError: it did not answer. CacheUnwritable, UnknownRole: this host is at fault.
        """
        return self._file(artifact, progress)

    def prefetch(self, artifacts: Iterable[Artifact], *, jobs: int = 8, progress: Progress | None = None) -> None:
        """Fetch what is missing of ``artifacts``, ``jobs`` at once, the largest first; the first error ends it.

        ``progress`` is called from several threads, one call at a time.

        Raises:
            What ``file`` raises.
        """
        missing = {artifact.digest: artifact for artifact in artifacts if not self.has(artifact)}
        guard = threading.Lock()

        def report(artifact: Artifact, size: int) -> None:
            if progress:
                with guard:
                    progress(artifact, size)

        self._stop.clear()
        with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="fetch") as threads:
            ordered = sorted(missing.values(), key=lambda artifact: -artifact.size)
            tasks = [threads.submit(self._file, artifact, report) for artifact in ordered]
            try:
                for task in as_completed(tasks):
                    task.result()
            except BaseException:
                self._stop.set()
                threads.shutdown(wait=True, cancel_futures=True)
                self._stop.clear()
                raise

    def _file(self, artifact: Artifact, progress: Progress) -> Path:
        file = self.path(artifact.digest)
        if self.has(artifact):
            return file
        with _disk_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            while not self.has(artifact):
                with _locked(file.with_suffix(".partial")) as partial:
                    # Who held the lock before us may have finished the file.
                    if partial and not self.has(artifact):
                        self._bring(artifact, partial, progress)
                        file.with_suffix(".partial").replace(file)
                        os.fchmod(partial.fileno(), 0o444)
        return file

    def _bring(self, artifact: Artifact, partial: IO[bytes], progress: Progress) -> None:
        resumed = os.fstat(partial.fileno()).st_size > 0
        url, sha256 = self._from_first(artifact, partial, lambda size: progress(artifact, size))
        size = os.fstat(partial.fileno()).st_size
        if sha256 == artifact.digest.hex and size == artifact.size:
            os.fsync(partial.fileno())
            return
        progress(artifact, -size)
        partial.seek(0)
        partial.truncate()
        if resumed:  # the beginning may have come from elsewhere: once more, from nothing
            self._bring(artifact, partial, progress)
            return
        self.path(artifact.digest).with_suffix(".partial").unlink()
        source = f"{artifact.name} {artifact.version} from {without_credentials(url)}"
        raise DigestMismatch(source, artifact.digest, artifact.size, Digest(f"sha256:{sha256}"), size)

    def _from_first(self, artifact: Artifact, out: IO[bytes], progress: Callable[[int], None]) -> tuple[str, str]:
        """Fill ``out`` from the first place that has the artefact; the address and the sha256 of what came."""
        said = ""
        for url, headers in self._places(artifact):
            sha256, said = self._attempt(url, headers, out, artifact.size, progress)
            if not said:
                return url, sha256
        raise _gone(artifact, said)

    def _attempt(
        self, url: str, headers: Mapping[str, str], out: IO[bytes], size: int, progress: Callable[[int], None]
    ) -> tuple[str, str]:
        """The sha256 of what came, or why nothing is there."""
        try:
            return self._copy(url, headers, out, size, progress), ""
        except ArtifactGone as error:
            return "", str(error)
        finally:
            out.flush()

    def _copy(
        self, url: str, headers: Mapping[str, str], out: IO[bytes], size: int, progress: Callable[[int], None]
    ) -> str:
        if is_folder(url):
            out.seek(0)
            out.truncate()
            return copy_file(folder_of(url), out, size, progress=progress)
        return download(self._http, url, headers, out, size, progress=progress)

    def adopt(self, url: str, headers: Mapping[str, str]) -> tuple[Digest, int] | None:
        """Fetch the file at ``url``, whatever it is, and keep it; its digest and size. None when its size is unknown.

        Raises:
            ArtifactGone, UnavailableError, CacheUnwritable: see ``file``.
        """
        size = folder_of(url).stat().st_size if is_folder(url) else fetch_size(self._http, url, headers)
        if size is None:
            return None
        with _disk_errors(self._directory):
            self._directory.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w+b", dir=self._directory, prefix=".adopting-", delete=False) as out:
                try:
                    digest = Digest("sha256:" + self._copy(url, headers, out, size, lambda _: None))
                    self.path(digest).parent.mkdir(parents=True, exist_ok=True)
                    os.fchmod(out.fileno(), 0o444)
                    Path(out.name).replace(self.path(digest))
                except BaseException:
                    Path(out.name).unlink(missing_ok=True)
                    raise
        return digest, size

    def _places(self, artifact: Artifact) -> Iterator[tuple[str, dict[str, str]]]:
        """Where the artefact may be, best first: address and headers."""
        if isinstance(artifact, Wheel):
            yield self._locate_wheel(artifact)
            return
        role, _, moment = artifact.archive.partition("@")
        roots = [self._mirrors.get(role), at(self._mirrors.get(role + SNAPSHOT, ""), moment)]
        if not any(roots):
            raise UnknownRole(
                f"{artifact.name}: no mirror for archive {role!r}",
                hint=setting_hint("mirrors", role),
            )
        path = entry_path(artifact.file, source=f"lock: {artifact.name}")
        for root in filter(None, roots):
            url = f"{without_credentials(root).rstrip('/')}/{quote(path, safe='/+~:')}"
            yield url, headers_for(url, root)

    def _locate_wheel(self, wheel: Wheel) -> tuple[str, dict[str, str]]:
        index = self._indexes.get(wheel.index)
        if index is None:
            raise UnknownRole(
                f"{wheel.name}: no Python index for role {wheel.index!r}", hint=setting_hint("indexes", wheel.index)
            )
        name = file_name(wheel.file, source=f"lock: {wheel.name}")
        if is_folder(index):
            return str(folder_of(index) / name), {}
        page = self._page(wheel.index, index, "" if is_page(index) else canonicalize_name(wheel.name))
        found = page.get(name)
        if found is None:
            raise _gone(wheel, f"the index no longer has {name}")
        # What the page promises is not held against the lock: indexes err, and the bytes decide.
        return found.url, headers_for(found.url, address_of(index))

    def _page(self, role: str, index: str, project: str) -> dict[str, IndexFile]:
        # Two threads may both ask: the same page twice is cheaper than one waiting for all others.
        page = self._pages.get((role, project))
        if page is None:
            root = address_of(index)
            url = f"{without_credentials(root).rstrip('/')}/{project}/" if project else without_credentials(root)
            data, content_type, final = fetch_page(self._http, url, {**headers_for(url, root), "Accept": ACCEPT})
            page = self._pages[role, project] = parse_page(data, content_type, final)
        return page


def _gone(artifact: Artifact, why: str) -> ArtifactGone:
    option = f"--upgrade-package {artifact.name}" if isinstance(artifact, Wheel) else "--upgrade"
    hint = f"Lock what is there now: envbuilder lock ENV {option}"
    return ArtifactGone(f"{artifact.name} {artifact.version}: {why}", hint=hint)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[IO[bytes] | None]:
    """``file`` open for reading and writing and locked; None if it was moved away while we waited."""
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            current = file.stat().st_ino == os.fstat(stream.fileno()).st_ino
        except FileNotFoundError:
            current = False
        try:
            yield stream if current else None
        finally:
            fcntl.flock(stream, fcntl.LOCK_UN)  # a process that was forked meanwhile has it, too


@contextlib.contextmanager
def _disk_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        hint = "Free some space, or name another folder." if full else "Name a folder that you may write."
        raise CacheUnwritable(
            f"artefact cache {file.parent}: {error.strerror}", hint=f"{hint} Setting: cache."
        ) from error

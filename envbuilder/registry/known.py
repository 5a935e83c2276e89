"""KnownBlobs: what registries were seen to hold, kept on disk, so that a push need not ask again.

A shortcut and never a promise: an entry is trusted for a day, and a manifest that is refused for
a missing blob makes the caller forget the repository and ask (registry.md 1, 4).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from envbuilder.digest import Digest, InvalidDigest, InvalidJson, canonical_json, parse_json_object
from envbuilder.errors import HostError
from envbuilder.store.files import disk_errors, exclusive
from envbuilder.store.records import RecordStore

_log = logging.getLogger("envbuilder.registry")
#: Seconds that an entry counts. Registries that collect what no tag names keep it for days (Quay: 14, ECR: by rule),
#: so a day is safe, and CI pushes the same layers within hours.
LIFE_S = 24 * 3600.0
#: Entries kept for one registry, newest first: some 4 MB of JSON before compression.
_MAX_ENTRIES = 50_000
_FORMAT = 1


def _reopened(directory: Path, life_s: float) -> KnownBlobs:
    return KnownBlobs(directory, life_s=life_s)


class KnownBlobs:
    """Digests by registry (its origin) and repository; one record a registry below ``directory``. Thread-safe.

    Nothing is read before the first question and nothing is written before ``save``. Processes may share
    the directory: each adds what it learned. ``clock`` gives seconds since the epoch.
    """

    def __init__(self, directory: Path, *, life_s: float = LIFE_S, clock: Callable[[], float] = time.time) -> None:
        self._directory, self._life_s, self._clock = directory, life_s, clock
        self._records = RecordStore(directory)
        self._lock = threading.Lock()
        self._seen: dict[str, dict[tuple[str, Digest], float]] = {}
        self._forgotten: dict[str, dict[str, float]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._directory, self._life_s)

    def has(self, registry: str, repository: str, digest: Digest) -> bool:
        """Whether ``repository`` was seen to hold it less than a life ago."""
        with self._lock:
            at_s = self._of(registry).get((repository, digest))
        return at_s is not None and 0 <= self._clock() - at_s < self._life_s

    def holders(self, registry: str, digest: Digest) -> tuple[str, ...]:
        """Repositories that were seen to hold it, the latest first: where it may be mounted from."""
        now = self._clock()
        with self._lock:
            found = [(at_s, name) for (name, one), at_s in self._of(registry).items() if one == digest]
        return tuple(name for at_s, name in sorted(found, reverse=True) if 0 <= now - at_s < self._life_s)

    def note(self, registry: str, repository: str, digests: Iterable[Digest]) -> None:
        """Remember that ``repository`` holds ``digests`` now."""
        now = self._clock()
        with self._lock:
            seen = self._of(registry)
            for digest in digests:
                seen[repository, digest] = now

    def forget(self, registry: str, repository: str) -> bool:
        """Forget all of ``repository``; whether there was anything."""
        with self._lock:
            seen = self._of(registry)
            stale = [key for key in seen if key[0] == repository]
            for key in stale:
                del seen[key]
            self._forgotten.setdefault(registry, {})[repository] = self._clock()
        return bool(stale)

    def save(self, registry: str) -> None:
        """Keep what was learned about ``registry``. A disk that refuses is logged: this is only a shortcut."""
        try:
            with disk_errors(self._directory):
                self._directory.mkdir(parents=True, exist_ok=True)
            with exclusive(self._directory / "lock"), self._lock:
                others = self._read(registry)
                gone = self._forgotten.pop(registry, {})
                merged = {key: at_s for key, at_s in others.items() if at_s > gone.get(key[0], -1.0)}
                for key, at_s in self._of(registry).items():
                    merged[key] = max(at_s, merged.get(key, 0.0))
                newest = sorted(merged.items(), key=lambda item: -item[1])[:_MAX_ENTRIES]
                self._seen[registry] = dict(newest)
                self._records.put(_key(registry), _dump(registry, newest))
        except HostError as error:
            _log.debug("known blobs of %s are not kept: %s", registry, error)

    def _of(self, registry: str) -> dict[tuple[str, Digest], float]:
        if registry not in self._seen:
            self._seen[registry] = self._read(registry)
        return self._seen[registry]

    def _read(self, registry: str) -> dict[tuple[str, Digest], float]:
        data = self._records.get(_key(registry))
        if data is None:
            return {}
        try:
            value = parse_json_object(data, source="known blobs")
            if (value.get("format"), value.get("registry")) != (_FORMAT, registry):
                return {}
            oldest = self._clock() - self._life_s
            return {
                (name, Digest.parse(digest)): float(at_s)
                for name, digests in value["repositories"].items()
                for digest, at_s in digests.items()
                if float(at_s) > oldest
            }
        except (InvalidJson, InvalidDigest, KeyError, TypeError, ValueError, AttributeError) as error:
            _log.debug("known blobs of %s: not ours: %s", registry, error)
            return {}


def _key(registry: str) -> str:
    return "known-" + Digest.of(registry.encode()).hex


def _dump(registry: str, entries: Iterable[tuple[tuple[str, Digest], float]]) -> bytes:
    repositories: dict[str, dict[str, int]] = {}
    for (name, digest), at_s in entries:
        repositories.setdefault(name, {})[str(digest)] = int(at_s)
    return canonical_json({"format": _FORMAT, "registry": registry, "repositories": repositories})

"""Capabilities: what a registry turned out to do, kept on disk over the built-in profile.

Products change, and proxies stand before them: what a registry did yesterday says more than its name.
Each fact has an age, after which it is found out anew (registry.md 9).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.digest import Digest, InvalidJson, canonical_json, parse_json_object
from envbuilder.errors import HostError
from envbuilder.store.records import RecordStore

_log = logging.getLogger("envbuilder.registry")
#: Seconds that a fact counts: registries get mended within days, and finding out again costs one failed request.
LIFE_S = 7 * 24 * 3600.0
_MAX_FACTS = 200
_MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class Fact:
    """What was found and when, in seconds since the epoch."""

    value: str
    at_s: float


def _reopened(directory: Path | None) -> Capabilities:
    return Capabilities(directory)


class Capabilities:
    """Facts by registry (its origin); written at once below ``directory``, None: kept in memory only. Thread-safe.

    Names in use: ``upload`` (put, stream or chunks), ``chunk-size``, ``mount``, ``range``, ``head``,
    ``product`` (a profile's name), ``referrers`` (yes or no).
    """

    def __init__(self, directory: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._directory, self._clock = directory, clock
        self._records = RecordStore(directory) if directory else None
        self._lock = threading.Lock()
        self._facts: dict[str, dict[str, Fact]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._directory,)

    def get(self, registry: str, name: str) -> str:
        """The value of a fact, "" if it is not known or too old."""
        fact = self.all(registry).get(name)
        return fact.value if fact else ""

    def all(self, registry: str) -> Mapping[str, Fact]:
        """Every fact about ``registry`` that is not too old."""
        now = self._clock()
        with self._lock:
            return {name: fact for name, fact in self._of(registry).items() if 0 <= now - fact.at_s < LIFE_S}

    def note(self, registry: str, name: str, value: str) -> None:
        """Remember a fact. A disk that refuses is logged: the fact still counts in this process."""
        with self._lock:
            facts = self._of(registry)
            known = facts.get(name)
            if known and known.value == value and self._clock() - known.at_s < LIFE_S / 2:
                return
            facts[name] = Fact(value[:_MAX_TEXT], self._clock())
            self._keep(registry, facts)

    def _of(self, registry: str) -> dict[str, Fact]:
        if registry not in self._facts:
            self._facts[registry] = self._read(registry)
        return self._facts[registry]

    def _keep(self, registry: str, facts: Mapping[str, Fact]) -> None:
        if self._records is None:
            return
        kept = {name: {"value": fact.value, "at": int(fact.at_s)} for name, fact in [*facts.items()][:_MAX_FACTS]}
        try:
            self._records.put(_key(registry), canonical_json({"registry": registry, "facts": kept}))
        except HostError as error:
            _log.debug("capabilities of %s are not kept: %s", registry, error)

    def _read(self, registry: str) -> dict[str, Fact]:
        data = self._records.get(_key(registry)) if self._records else None
        if data is None:
            return {}
        try:
            value = parse_json_object(data, source="capabilities")
            if value.get("registry") != registry:
                return {}
            facts = value["facts"].items()
            return {name: Fact(str(fact["value"])[:_MAX_TEXT], float(fact["at"])) for name, fact in facts}
        except (InvalidJson, KeyError, TypeError, ValueError, AttributeError) as error:
            _log.debug("capabilities of %s: not ours: %s", registry, error)
            return {}


def _key(registry: str) -> str:
    return "can-" + Digest.of(registry.encode()).hex

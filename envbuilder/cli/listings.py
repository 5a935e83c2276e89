"""Conflicts that a lock shows already: between the wheels that it has just chosen, from listings of them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from envbuilder.digest import Digest
from envbuilder.errors import EnvbuilderError, SpecError
from envbuilder.layer.claims import Conflict
from envbuilder.layer.plan import WheelPlan, check_wheels, plan
from envbuilder.lock.download import Http
from envbuilder.lock.fetch import ArtifactCache
from envbuilder.lock.listing import fetch_listing
from envbuilder.lock.model import Artifact, Lock, Wheel
from envbuilder.lock.settings import folder_of, is_folder

#: Listings read at a time: a request or two of some 30 kB each.
TOGETHER = 16


@dataclass(slots=True, kw_only=True)
class Listings:
    """Where the wheels are that locking chose. An ArtifactSource of wheels that are in ``cache``, or listed."""

    cache: ArtifactCache
    http: Http
    chosen: dict[Digest, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    listed: dict[Digest, Path] = field(default_factory=dict)
    read: int = 0

    def note(self, digest: Digest, url: str, headers: Mapping[str, str]) -> None:
        """Remember where the file of ``digest`` is."""
        self.chosen[digest] = url, headers

    def file(self, artifact: Artifact) -> Path:
        return self.listed.get(artifact.digest) or self.cache.path(artifact.digest)

    def conflicts(self, locks: Sequence[Lock]) -> tuple[str, ...]:
        """What two new wheels of the last of ``locks``, whose parents stand before it, would both put at one path.

        Only new ones are held against each other, so that a lock that changes little costs nothing; one whose listing
        cannot be had is left out. ``plan`` and ``build`` look at all of them.
        """
        lock = locks[-1]
        new = {wheel.digest: wheel for wheel in lock.wheels if wheel.digest in self.chosen}
        if len(new) < 2:
            return ()
        try:
            plans = [each for each in plan(locks) if isinstance(each, WheelPlan)]
        except SpecError:
            return ()  # no image is made of it here
        here = {digest for digest, wheel in new.items() if self.cache.has(wheel)}
        wanted = [wheel for digest, wheel in new.items() if digest not in here]
        with tempfile.TemporaryDirectory(prefix="envbuilder-listings-") as folder:
            with ThreadPoolExecutor(TOGETHER, "listings") as pool:
                self.read += sum(pool.map(lambda wheel: self._list(wheel, Path(folder)), wanted))
            try:
                check_wheels(plans, self, only=here | self.listed.keys(), doubtful=self.listed.keys())
            except Conflict as error:
                return error.problems
            finally:
                self.listed.clear()
        return ()

    def _list(self, wheel: Wheel, folder: Path) -> int:
        url, headers = self.chosen[wheel.digest]
        if is_folder(url):
            self.listed[wheel.digest] = folder_of(url)
            return 0
        try:
            count = fetch_listing(self.http, url, headers, wheel.size, folder / wheel.digest.hex)
        except EnvbuilderError:
            return 0
        self.listed[wheel.digest] = folder / wheel.digest.hex
        return count

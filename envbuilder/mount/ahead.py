"""What of a start goes on while its image is still looked up: round trips and processes that need nothing of it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from envbuilder.mount.container.program import Program
from envbuilder.mount.launch import Launched
from envbuilder.mount.prepare import MetadataRead
from envbuilder.mount.startup.traces import TraceSearch


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What was begun of a start; None is begun when it is needed.

    keeper: ended by who mounts. runtime: as ``find_runtime`` finds it.
    """

    keeper: Launched | None = None
    search: TraceSearch | None = None
    metadata: MetadataRead | None = None
    runtime: Future[Program] | None = None


NOTHING = Ahead()

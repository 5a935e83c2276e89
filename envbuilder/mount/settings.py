"""How this node mounts: what every start is told, and no more to import than that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envbuilder.mount.chunks.quota import NO_QUOTA, Quota

Mode = Literal["auto", "erofs", "loop", "fuse", "unpack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MountSettings:
    """Where this node keeps what, and how it mounts.

    state_dir: what is mounted (/run/envbuilder); cache_dir: chunks, metadata, unpacked trees; must be on an
    ordinary disk. wait_limit_s: how long a read waits for a registry that is away before it fails.
    answer_limit_s: a process of a mount that is stopped or hangs is replaced after so long (heartbeat.py).
    background: fetch the rest of the image while it runs. trace: use the image's start-up trace.
    node_connections: how many connections all mounts of this node have to one registry together; 0: no limit.
    quota: what the chunks on this node may take.
    layer_indexes: believe checkpoint indexes that a registry has beside gzip layers (foreign.py).
    """

    state_dir: Path
    cache_dir: Path
    mode: Mode = "auto"
    connections: int = 8
    node_connections: int = 32
    wait_limit_s: float = 300.0
    answer_limit_s: float = 30.0
    background: bool = False
    trace: bool = True
    quota: Quota = NO_QUOTA
    layer_indexes: bool = False

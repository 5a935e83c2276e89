"""How a registry goes about what the distribution-spec leaves open, or what its product does otherwise.

The defaults are the specification's; ``testing.quirks`` has a setting for each product of registry.md 9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: Bytes of a manifest that a registry takes at least (distribution-spec 1.1, "Pushing Manifests").
MANIFEST_LIMIT = 4 << 20


@dataclass(slots=True, kw_only=True)
class Habits:
    """Switches of a fake registry; they may be changed while it runs. Sizes are bytes, and 0 is no limit.

    ranges: a Range is answered with 206. mount: what happens to a mount: an upload, or 201, or 500.
    single_post: ``POST ?digest=`` with a body stores it; else 202, an upload begins.
    chunks: PATCH is allowed at all. ordered: a chunk that is not the next one gets 416; else it is appended.
    patch_status: the status of a chunk that was taken. patch_range: what its Range header says: all that is here,
    only the first chunk (ECR), or the last chunk's own extent (old zot, Aliyun). lossy_patch: the last one stays.
    state: the name under which an upload's Location carries its state; ``_state`` is of distribution's own code.
    upload_prefix: stands before the path of an upload's Location (GAR). min_chunk: as OCI-Chunk-Min-Length.
    max_patch, max_put, max_manifest: larger bodies get 416, 413 and 413. empty_blobs: an upload of nothing is taken.
    head: HEAD is answered, else 405. paged: ``n`` and ``last`` are heeded, with a Link; else all tags come at once.
    delete, delete_tags: what may be deleted. immutable: a tag never moves.
    referrers: the API is there, and a pushed subject is confirmed. confirms_subject: it is confirmed without that.
    """

    ranges: bool = True
    mount: Literal["", "accept", "fail"] = ""
    relative_locations: bool = False
    state: str = "_state"
    upload_prefix: str = ""
    single_post: bool = False
    chunks: bool = True
    ordered: bool = True
    patch_status: int = 202
    patch_range: Literal["all", "first", "chunk"] = "all"
    lossy_patch: bool = False
    max_patch: int = 0
    max_put: int = 0
    max_manifest: int = MANIFEST_LIMIT
    min_chunk: int = 0
    empty_blobs: bool = True
    head: bool = True
    paged: bool = True
    delete: bool = True
    delete_tags: bool = True
    immutable: bool = False
    referrers: bool = False
    confirms_subject: bool = False

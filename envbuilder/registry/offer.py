"""Offering a manifest to a registry that may not see yet, or no longer, what the manifest names.

Source: OCI distribution-spec 1.1, "Pushing Manifests" and "Error Codes".
"""

from __future__ import annotations

from collections.abc import Callable, Container

from envbuilder.registry.answer import Answer
from envbuilder.registry.client import Call, Registry
from envbuilder.registry.errors import Rejected
from envbuilder.store.target import MissingChildren, NotFound

#: A manifest is refused for what it names (distribution-spec, "Error Codes"; an index's children are manifests).
_MISSING = frozenset({"MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN", "MANIFEST_UNKNOWN"})
#: Seconds until a manifest refused so is offered again. Distribution 2.8 over files writes the link of a blob in place,
#: so whoever looks while another client stores the same blob sees none (10 of 640 attachments by four writers at once).
_PAUSES_S = (0.1, 0.4)


def offer(registry: Registry, call: Call, statuses: Container[int], sleep: Callable[[float], None]) -> Answer:
    """The answer to ``call``, which stores a manifest; asked again twice while the registry misses what it names.

    Raises:
        MissingChildren: it still does. Rejected, NotFound, ...: as any request.
    """
    for pause_s in (*_PAUSES_S, None):
        try:
            return registry.request(call, statuses)
        except (Rejected, NotFound) as error:
            if not any(code in str(error) for code in _MISSING):
                raise
            if pause_s is None:
                raise MissingChildren(str(error), hint="Push it again; the registry lost a part of it.") from error
        sleep(pause_s)
    raise AssertionError("unreachable: the last time returns or raises")

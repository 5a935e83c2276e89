"""What a request to a registry is for, in words, for the log: its verb and path say so (distribution-spec 1.1)."""

from __future__ import annotations

import re

#: Verb, pattern of the path, words: every call that we make.
PURPOSES = (
    ("GET", r"/v2/$", "who may do what here"),
    ("HEAD", r"/manifests/", "is this manifest there"),
    ("GET", r"/manifests/", "look up a manifest"),
    ("PUT", r"/manifests/sha256:", "store a manifest"),
    ("PUT", r"/manifests/", "set a tag"),
    ("DELETE", r"/manifests/", "delete a manifest or tag"),
    ("POST", r"/blobs/uploads/\?mount=", "take a blob over from a neighbour"),
    ("POST", r"/blobs/uploads/", "begin an upload"),
    ("HEAD", r"/blobs/", "is this blob there"),
    ("GET", r"/blobs/uploads/", "how far an upload came"),
    ("GET", r"/blobs/", "read a blob"),
    ("DELETE", r"/blobs/uploads/", "cancel an upload"),
    ("GET", r"/tags/list", "list tags"),
    ("GET", r"/referrers/", "what refers to a manifest"),
    ("PATCH", "", "a part of a blob"),
    ("PUT", "", "send a blob, or end its upload"),
    ("DELETE", "", "cancel an upload"),
)


def purpose_of(method: str, url: str) -> str:
    """What ``method`` on ``url`` is for."""
    return next((text for verb, path, text in PURPOSES if verb == method and re.search(path, url)), "asked for")

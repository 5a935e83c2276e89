"""Peer: a cold local disk: the same tree unpacked on it, the command started by chroot and nothing else."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from measure import Cost, measured
from scratch import Bench, need, tool
from servers import Registry


def unpack(bench: Bench, at: Registry, repository: str, digest: str) -> Path:
    """The plain manifest of the image, layer on layer, from the registry's own files."""
    need("zstd", "tar")
    root = bench.folder("disk")
    document = _manifest(at, repository, digest)
    if "manifests" in document:
        document = _manifest(at, repository, document["manifests"][0]["digest"])
    for layer in document["layers"]:
        hexed = layer["digest"].removeprefix("sha256:")
        blob = at.data / "docker/registry/v2/blobs/sha256" / hexed[:2] / hexed / "data"
        script = f"zstd -dcq {blob} | tar --numeric-owner -C {root} -xf -"
        measured(["/bin/sh", "-ec", script], log=bench.log)
    return root


def start(bench: Bench, root: Path, command: list[str]) -> Cost:
    """The command in ``root``; the mounts are in a namespace of its own and go with it."""
    script = f'mount -t proc proc {root}/proc; mount --rbind /dev {root}/dev; exec chroot {root} "$@"'
    words = ["/bin/sh", "-ec", script, "sh", "/usr/bin/env", "PATH=/opt/env/bin:/usr/bin:/bin", *command]
    return measured([tool("unshare"), "--mount", *words], log=bench.log)


def _manifest(at: Registry, repository: str, digest: str) -> dict[str, list[dict[str, str]]]:
    accept = ", ".join(f"application/vnd.oci.image.{kind}.v1+json" for kind in ("index", "manifest"))
    request = urllib.request.Request(f"http://{at.host}/v2/{repository}/manifests/{digest}", headers={"Accept": accept})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        document: dict[str, list[dict[str, str]]] = json.load(answer)
        return document

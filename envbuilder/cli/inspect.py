"""``envbuilder inspect REF``: what is in an image or a lock."""

from __future__ import annotations

import json
from typing import Any

import click

from envbuilder.cli.app import App, common
from envbuilder.cli.complete import environment_names
from envbuilder.cli.output import Result, human_size, pairs, table
from envbuilder.cli.project import fresh_locks
from envbuilder.cli.targets import host_platform_of, open_source
from envbuilder.image.attached import attached
from envbuilder.image.inspect import OpenImage, open_image
from envbuilder.lock.codec import digest
from envbuilder.lock.model import Artifact, Lock
from envbuilder.oci import media_types
from envbuilder.oci.platform import Platform
from envbuilder.oci.reference import EnvironmentName, InvalidReference, parse_reference
from envbuilder.oci.tables import have_tables

#: What an SBOM is called here -> its media type.
_SBOMS = {"cyclonedx": media_types.CYCLONEDX, "spdx": media_types.SPDX}


@click.command(name="inspect", epilog="Example: envbuilder inspect ai --lock")
@click.argument("reference", metavar="REF", shell_complete=environment_names)
@click.option("--lock", "show_lock", is_flag=True, help="Show the lock of an environment in place of its image.")
@click.option("--sbom", type=click.Choice(sorted(_SBOMS)), help="Print the SBOM attached to the image, as it is.")
@click.option("--platform", default="", metavar="P", help="Platform (default: this host's).")
@common
def command(app: App, reference: str, show_lock: bool, sbom: str | None, platform: str) -> Result:
    """Say what is in the image REF: layers, sizes, variables, command; or what an environment's lock pins."""
    parsed = Platform.parse(platform) if platform else host_platform_of()
    if show_lock:
        name = parse_reference(reference)
        if not isinstance(name, EnvironmentName):
            raise InvalidReference(f"--lock: want an environment's name, got {reference!r}")
        return _lock(fresh_locks(app.need_project(), name.name, parsed)[-1])
    source = open_source(app, reference)
    if sbom:
        ((_, document),) = attached(source.target, source.what, _SBOMS[sbom])
        return Result(document.decode(), json.loads(document))
    return _image(source.pinned, open_image(source.target, source.what, parsed))


def _image(pinned: str, image: OpenImage) -> Result:
    layers: list[dict[str, Any]] = [
        {
            "id": layer.annotations.get(media_types.LAYER_ID, ""),
            "digest": str(layer.digest),
            "diff_id": str(diff_id),
            "size": layer.size,
            "media_type": layer.media_type,
        }
        for layer, diff_id in zip(image.manifest.layers, image.config.diff_ids, strict=True)
    ]
    value = {
        "pinned": pinned,
        "digest": str(image.root.digest),
        "manifest": str(image.descriptor.digest),
        "lazy_manifest": str(image.lazy.descriptor.digest) if image.lazy else None,
        "metadata_size": image.lazy.metadata.size if image.lazy else None,
        "platform": str(image.config.platform),
        "size": sum(layer["size"] for layer in layers),
        "layers": layers,
        "env": dict(image.config.env),
        "entrypoint": list(image.config.entrypoint),
        "command": list(image.config.command),
        "labels": dict(image.config.labels),
        "annotations": dict(image.annotations),
    }
    head = pairs(
        {
            "image": pinned,
            "platform": str(image.config.platform),
            "size": f"{human_size(value['size'])} in {len(layers)} layers",
            "lazy start": _lazy_start(image),
            "command": " ".join((*image.config.entrypoint, *image.config.command)),
            **{name: text for name, text in image.annotations.items() if name.startswith(media_types.PREFIX)},
        }
    )
    rows = [("layer", "size", "digest"), *((item["id"], human_size(item["size"]), item["digest"]) for item in layers)]
    variables = pairs(dict(sorted(image.config.env.items())))
    return Result(f"{head}\n\n{table(rows)}\n\n{variables}", value)


def _lazy_start(image: OpenImage) -> str:
    if image.lazy:
        return f"yes, {human_size(image.lazy.metadata.size)} of metadata"
    if have_tables(image.manifest.layers):
        return "yes, by its layers' own tables of contents"
    return "once it was pulled whole"


def _lock(lock: Lock) -> Result:
    artifacts: list[Artifact] = [*lock.wheels, *lock.debs]
    total = sum(each.size for each in artifacts)
    system = f"Debian {lock.suite}" if lock.suite else lock.system.name if lock.system else ""
    value = {
        "name": lock.name,
        "version": lock.version,
        "digest": str(digest(lock)),
        "platform": str(lock.platform),
        "python": lock.python.version,
        "suite": lock.suite,
        "base": {"system": lock.system.name, "image": lock.system.image} if lock.system else None,
        "glibc": lock.glibc,
        "bytecode": lock.bytecode,
        "cuda": {"toolkit": lock.cuda.toolkit, "minimum_driver": lock.cuda.minimum_driver} if lock.cuda else None,
        "parent": lock.parent.name if lock.parent else None,
        "layers": list(lock.layers),
        "artifacts": [
            {
                "name": each.name,
                "version": each.version,
                "file": each.file,
                "digest": str(each.digest),
                "size": each.size,
                "layer": each.layer,
            }
            for each in artifacts
        ],
    }
    head = pairs(
        {
            "lock": f"{lock.name} {lock.version}, {digest(lock)}",
            "platform": f"{lock.platform}, {system}, glibc {lock.glibc}, Python {lock.python.version}",
            "cuda": f"{lock.cuda.toolkit}, driver {lock.cuda.minimum_driver} or newer" if lock.cuda else "none",
            "artefacts": f"{len(lock.wheels)} wheels, {len(lock.debs)} debs, {human_size(total)}",
        }
    )
    rows = [
        ("package", "version", "size", "layer"),
        *((each.name, each.version, human_size(each.size), each.layer) for each in artifacts),
    ]
    return Result(f"{head}\n\n{table(rows)}", value)

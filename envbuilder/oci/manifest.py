"""Image manifests and indexes: OCI image-spec 1.1 manifest.md and image-index.md.

The bytes are the truth: a parsed document keeps the bytes it came from, and nothing
here re-serialises a document that already has a digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envbuilder.digest import Descriptor, InvalidJson, canonical_json, parse_json_object
from envbuilder.oci import media_types

#: Bytes a manifest or index may have: what registries must accept (distribution-spec) and all we parse.
MAX_MANIFEST_SIZE = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One image: its config and its layers, base first."""

    config: Descriptor
    layers: tuple[Descriptor, ...]
    media_type: str = media_types.OCI_MANIFEST
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    artifact_type: str = ""
    subject: Descriptor | None = None

    def dump(self) -> bytes:
        """Canonical JSON of the manifest: exactly what is pushed."""
        value: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": self.media_type,
            "config": self.config.to_json(),
            "layers": [layer.to_json() for layer in self.layers],
        }
        if self.artifact_type:
            value["artifactType"] = self.artifact_type
        if self.subject is not None:
            value["subject"] = self.subject.to_json()
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return canonical_json(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Several images under one digest; the first that matches a platform is the one to run."""

    manifests: tuple[Descriptor, ...]
    media_type: str = media_types.OCI_INDEX
    annotations: Mapping[str, str] = field(default_factory=dict, hash=False)
    artifact_type: str = ""
    subject: Descriptor | None = None

    def dump(self) -> bytes:
        """Canonical JSON of the index."""
        value: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": self.media_type,
            "manifests": [manifest.to_json() for manifest in self.manifests],
        }
        if self.artifact_type:
            value["artifactType"] = self.artifact_type
        if self.subject is not None:
            value["subject"] = self.subject.to_json()
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return canonical_json(value)


def parse_document(data: bytes, *, source: str) -> Manifest | Index:
    """The manifest or index in ``data``.

    Raises:
        InvalidJson, InvalidDigest: over 4 MiB, not JSON, or not one of the four document types.
    """
    if len(data) > MAX_MANIFEST_SIZE:
        raise InvalidJson(f"{source}: manifest: want at most {MAX_MANIFEST_SIZE} bytes, got {len(data)}")
    value = parse_json_object(data, source=source)
    media_type = value.get("mediaType") or (media_types.OCI_INDEX if "manifests" in value else media_types.OCI_MANIFEST)
    annotations = _annotations(value, source)
    artifact_type = str(value.get("artifactType") or "")
    subject = Descriptor.from_json(value["subject"]) if value.get("subject") is not None else None
    if media_type in media_types.INDEXES and "layers" not in value:
        return Index(
            manifests=_descriptors(value.get("manifests"), source, "manifests"),
            media_type=media_type,
            annotations=annotations,
            artifact_type=artifact_type,
            subject=subject,
        )
    if media_type in media_types.MANIFESTS and "manifests" not in value:
        return Manifest(
            config=Descriptor.from_json(value.get("config")),
            layers=_descriptors(value.get("layers"), source, "layers"),
            media_type=media_type,
            annotations=annotations,
            artifact_type=artifact_type,
            subject=subject,
        )
    raise InvalidJson(f"{source}: want an image manifest or index, got mediaType {str(media_type)[:100]!r}")


def _descriptors(value: object, source: str, where: str) -> tuple[Descriptor, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InvalidJson(f"{source}: {where}: want a list of descriptors")
    return tuple(Descriptor.from_json(item) for item in value)


def _annotations(value: Mapping[str, Any], source: str) -> Mapping[str, str]:
    annotations = value.get("annotations") or {}
    if not isinstance(annotations, dict) or not all(isinstance(text, str) for text in annotations.values()):
        raise InvalidJson(f"{source}: annotations: want an object of strings")
    return annotations

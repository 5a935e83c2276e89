"""Predicted digests: what the layers and the image of a lock are, once anybody built them. Pure.

``lockfiles/<name>/<platform>.digests`` beside the lock, byte-stable like it. Never a part of the lock: its digest
stands in the image, so that the image's own digest cannot stand in it (docs/decisions/0005). Each line holds
under a key; what has another key today is simply not predicted. Format: docs/formats/digests.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from envbuilder.digest import Descriptor, Digest, InvalidDigest
from envbuilder.errors import IntegrityError, SpecError, SpecErrors
from envbuilder.oci import media_types
from envbuilder.spec.toml import parse_toml

#: Version of this format; a file of another one predicts nothing.
FORMAT = 1
#: Bytes of a file that are read: a layer takes some 300, and an image has at most 127.
MAX_SIZE = 1 << 20


class InvalidPrediction(SpecError):
    """A file of predicted digests is not one that this version wrote: damaged, or edited by hand."""

    hint = "Remove the file: a build writes it anew."


class WrongPrediction(IntegrityError):
    """A build of the same recipe gave other bytes than were predicted: one of the two is not what it should be."""

    hint = "Find out which of the two is wrong; 'envbuilder build ENV --record' takes the bytes that were made here."


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedLayer:
    """A layer under the key of its plan: digest of its tar, digest and size in bytes of its blob."""

    id: str
    key: Digest
    diff_id: Digest
    digest: Digest
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """An image and its layers, base first. ``key`` decides the image; ``image`` is its index.

    records: the manifest of what was noted of the layers (image/records.py), if it was attached.
    """

    key: Digest
    image: Descriptor
    layers: tuple[PredictedLayer, ...]
    records: Descriptor | None = None


def dump(predicted: Predicted) -> bytes:
    """The one byte string of ``predicted``."""
    image, records = predicted.image, predicted.records
    lines = [
        "# What the lock beside this becomes; written by 'envbuilder build', checked by every build; do not edit.",
        f"format = {FORMAT}",
        f'key = "{predicted.key}"',
        f'image = {{ size = {image.size}, digest = "{image.digest}" }}',
        *([f'records = {{ size = {records.size}, digest = "{records.digest}" }}'] if records else []),
        "layers = [",
        *(
            f'    {{ id = "{layer.id}", size = {layer.size}, digest = "{layer.digest}", '
            f'diff-id = "{layer.diff_id}", key = "{layer.key}" }},'
            for layer in predicted.layers
        ),
        "]",
    ]
    return ("\n".join(lines) + "\n").encode()


def load(data: bytes, *, source: str) -> Predicted | None:
    """What the file ``data`` predicts; None when it is of another format than ours.

    Raises:
        InvalidPrediction: it is not exactly what ``dump`` writes.
    """
    try:
        if len(data) > MAX_SIZE:
            raise InvalidPrediction(f"{source}: want at most {MAX_SIZE} bytes, got {len(data)}")
        value = parse_toml(data.decode(), source=source)
        if isinstance(value.get("format"), int) and value["format"] != FORMAT:
            return None
        predicted = Predicted(
            key=Digest.parse(value["key"]),
            image=_descriptor(value["image"], media_types.OCI_INDEX),
            records=_descriptor(value["records"], media_types.OCI_MANIFEST) if "records" in value else None,
            layers=tuple(_layer(row) for row in value["layers"]),
        )
    except SpecErrors as error:
        raise InvalidPrediction(str(error)) from error
    except (UnicodeDecodeError, InvalidDigest, KeyError, TypeError) as error:
        raise InvalidPrediction(f"{source}: {error!r}") from error
    if dump(predicted) != data:
        raise InvalidPrediction(f"{source}: not as it was written: order, spacing or comments differ")
    return predicted


def _descriptor(value: dict[str, Any], media_type: str) -> Descriptor:
    return Descriptor(media_type=media_type, digest=Digest.parse(value["digest"]), size=_size(value))


def _layer(row: dict[str, Any]) -> PredictedLayer:
    return PredictedLayer(
        id=str(row["id"]),
        key=Digest.parse(row["key"]),
        diff_id=Digest.parse(row["diff-id"]),
        digest=Digest.parse(row["digest"]),
        size=_size(row),
    )


def _size(row: dict[str, Any]) -> int:
    size = row["size"]
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise TypeError(f"size: want 0 or more, got {size!r}")
    return size


def layer_differences(predicted: Predicted, made: Iterable[PredictedLayer]) -> tuple[str, ...]:
    """A line for each layer of ``made`` whose key is predicted to become other bytes."""
    theirs = {layer.key: layer for layer in predicted.layers}
    return tuple(
        f"{layer.id}: want {was.digest} ({was.size} bytes), got {layer.digest} ({layer.size} bytes)"
        for layer in made
        if (was := theirs.get(layer.key)) and replace(was, id=layer.id) != layer
    )


def differences(predicted: Predicted, made: Predicted) -> tuple[str, ...]:
    """What ``made`` contradicts: its layers, or the image if no layer is to blame."""
    lines = layer_differences(predicted, made.layers)
    if not lines and predicted.key == made.key and predicted.image.digest != made.image.digest:
        return (f"image: want {predicted.image.digest}, got {made.image.digest}, of the same layers",)
    return lines

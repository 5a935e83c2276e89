"""An image before it is built: the key that decides its bytes, and whether a target has it already."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from envbuilder.digest import Descriptor, Digest, canonical_json
from envbuilder.errors import EnvbuilderError, IntegrityError
from envbuilder.image.assemble import IMAGE_WRITER, METADATA_LEVEL
from envbuilder.image.inspect import OpenImage, open_image
from envbuilder.layer.erofs import EROFS_WRITER
from envbuilder.layer.frames import COMPRESSOR
from envbuilder.layer.model import Recipe
from envbuilder.lock.codec import digest
from envbuilder.lock.model import Lock
from envbuilder.lock.predicted import Predicted, PredictedLayer
from envbuilder.oci import media_types
from envbuilder.store.copy import copy_plan
from envbuilder.store.layout import LayoutTarget
from envbuilder.store.target import NotFound, Target

#: Version of the record that says what image a key became.
_RECORD = 1


class ForeignImage(IntegrityError):
    """A target has an image under the predicted digest that is of another lock or of other layers."""

    hint = "Remove the file of predicted digests and build: it names an image that this lock did not make."


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An image that a target has whole, all of its layers included: nothing of it need be made."""

    descriptor: Descriptor
    image: OpenImage

    @property
    def predicted(self) -> tuple[PredictedLayer, ...]:
        return layers_of(self.image)


def image_key(lock: Lock, plans: Sequence[Recipe]) -> Digest:
    """What decides the image of ``lock`` with the layers ``plans``: same key, same bytes."""
    writer = [IMAGE_WRITER, EROFS_WRITER, COMPRESSOR, METADATA_LEVEL]
    layers = [[plan.id, str(plan.key)] for plan in plans]
    return Digest.of(canonical_json({"writer": writer, "lock": str(digest(lock)), "layers": layers}))


def remember(store: LayoutTarget, key: Digest, image: Descriptor) -> None:
    """Note in ``store`` that ``key`` became ``image``, so that a build with nothing changed opens no layer."""
    store.records.put(_name(key), json.dumps({"format": _RECORD, "image": image.to_json()}).encode())


def recall(store: LayoutTarget, key: Digest) -> Descriptor | None:
    """The image that ``key`` became in ``store``; it may be gone since."""
    try:
        value = json.loads(store.records.get(_name(key)) or b"{}")
        return Descriptor.from_json(value["image"]) if value.get("format") == _RECORD else None
    except (ValueError, KeyError, AttributeError, EnvbuilderError):
        return None


def find_image(target: Target, what: Descriptor, lock: Lock, plans: Sequence[Recipe]) -> Known | None:
    """The image ``what`` of ``lock``, if ``target`` has every byte of it: existence is asked, nothing is fetched
    but its documents.

    Raises:
        ForeignImage: it is there and not of this lock. UnavailableError: the target did not answer.
    """
    try:
        if not target.has(what):
            return None
        plan = copy_plan(target, what, target)
        if plan.blobs or plan.manifests:
            return None
        known = Known(descriptor=what, image=open_image(target, what, lock.platform))
    except NotFound:
        return None
    lock_digest = known.image.annotations.get(media_types.LOCK_DIGEST)
    if lock_digest != str(digest(lock)):
        raise ForeignImage(f"{target.name}: {what.digest}: want an image of the lock {digest(lock)}, got {lock_digest}")
    want = [(plan.id, plan.key) for plan in plans]
    if [(layer.id, layer.key) for layer in known.predicted] != want:
        raise ForeignImage(f"{target.name}: {what.digest}: its layers are not those of the lock {lock_digest}")
    return known


def layers_of(image: OpenImage) -> tuple[PredictedLayer, ...]:
    """The layers of ``image`` with the plan keys that it names.

    Raises:
        InvalidDigest: it names none: not an image of ours.
    """
    return tuple(
        PredictedLayer(
            id=layer.annotations.get(media_types.LAYER_ID, ""),
            key=Digest.parse(layer.annotations.get(media_types.PLAN_KEY, "")),
            diff_id=diff_id,
            digest=layer.digest,
            size=layer.size,
        )
        for layer, diff_id in zip(image.manifest.layers, image.config.diff_ids, strict=True)
    )


def prediction(key: Digest, known: Known, records: Descriptor | None = None) -> Predicted:
    """What to tell those who build ``key``, or a lock that differs little, after us; ``records``: image/records.py."""
    bare = Descriptor(
        media_type=known.descriptor.media_type, digest=known.descriptor.digest, size=known.descriptor.size
    )
    return Predicted(key=key, image=bare, layers=known.predicted, records=records)


def _name(key: Digest) -> str:
    return f"image-{key.hex}"

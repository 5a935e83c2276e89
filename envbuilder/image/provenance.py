"""How an image was made, as an in-toto statement with a SLSA provenance predicate. Pure.

Source: in-toto attestation framework, Statement v1; SLSA 1.0, provenance v1. No times: the same lock gives
the same statement, so that whoever rebuilds the image can compare this too. It says what went in; that the
builder was what it says is for a signature to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envbuilder import __version__
from envbuilder.digest import Descriptor, canonical_json
from envbuilder.image.sbom import package_url
from envbuilder.layer.computed import COMPUTED_VERSION
from envbuilder.layer.frames import COMPRESSOR
from envbuilder.layer.model import Layer
from envbuilder.layer.plan import DEB_WRITER
from envbuilder.layer.tar import TAR_WRITER
from envbuilder.layer.wheel import WHEEL_WRITER
from envbuilder.lock.codec import digest
from envbuilder.lock.model import Artifact, Lock

_STATEMENT, _PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
#: Names of our own: the project has no host to put them under.
BUILD_TYPE, _BUILDER = "urn:envbuilder:build:lock:v1", "urn:envbuilder:builder"


def provenance(locks: Sequence[Lock], image: Descriptor, layers: Sequence[Layer]) -> bytes:
    """The statement over ``image``, which the last of ``locks`` became; the others are what it extends."""
    lock = locks[-1]
    artifacts: list[Artifact] = [*lock.debs, *lock.wheels]
    dependencies: list[dict[str, Any]] = [
        {"name": f"lock:{each.name}", "digest": {"sha256": digest(each).hex}} for each in locks
    ]
    dependencies += [
        {"uri": package_url(each, lock.suite), "digest": {"sha256": each.digest.hex}} for each in artifacts
    ]
    if lock.system and lock.system.base:
        base = lock.system.base
        dependencies.append({"name": f"base:{lock.system.name}", "digest": {"sha256": base.manifest.hex}})
        dependencies += [{"name": "base layer", "digest": {"sha256": each.digest.hex}} for each in base.layers]
    dependencies += [{"name": f"file:{each.path}", "digest": {"sha256": each.digest.hex}} for each in lock.files]
    statement = {
        "_type": _STATEMENT,
        "subject": [{"name": f"{lock.name}:{lock.version}", "digest": {"sha256": image.digest.hex}}],
        "predicateType": _PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "environment": lock.name,
                    "version": lock.version,
                    "platform": str(lock.platform),
                    "lock": str(digest(lock)),
                    "spec": str(lock.spec_digest),
                },
                "internalParameters": {
                    "writers": [DEB_WRITER, WHEEL_WRITER, f"computed/{COMPUTED_VERSION}", TAR_WRITER, COMPRESSOR]
                },
                "resolvedDependencies": dependencies,
            },
            "runDetails": {
                "builder": {"id": _BUILDER, "version": {"envbuilder": __version__}},
                "metadata": {"invocationId": str(digest(lock))},
                "byproducts": [
                    {"name": each.id, "digest": {"sha256": each.blob.digest.hex}, "mediaType": each.blob.media_type}
                    for each in layers
                ],
            },
        },
    }
    return canonical_json(statement)

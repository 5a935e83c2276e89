"""What is in an image, as CycloneDX 1.6 and SPDX 2.3 JSON. Pure: one lock and its licences, one document.

No clock and no random number: times are the epoch of every file in the image, and what must be unique
is named by the image's digest. Sources: CycloneDX 1.6 JSON; SPDX 2.3, clauses 6, 7, 10 and 11; purl-spec.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from envbuilder import __version__
from envbuilder.digest import Digest
from envbuilder.image.licences import Licensing, words_of
from envbuilder.layer.tree import SOURCE_EPOCH_S
from envbuilder.lock.model import Artifact, Deb, Lock
from envbuilder.oci import media_types

#: Of documents: the time of every file in the image.
_TIME = datetime.fromtimestamp(SOURCE_EPOCH_S, timezone.utc)
_NOTHING = "NOASSERTION"


def package_url(artifact: Artifact, suite: str) -> str:
    """The purl of a locked artefact."""
    if isinstance(artifact, Deb):
        version = quote(artifact.version, safe="~+.-")
        return (
            f"pkg:deb/debian/{quote(artifact.name, safe='+.-')}@{version}?arch={artifact.architecture}&distro={suite}"
        )
    return f"pkg:pypi/{artifact.name}@{quote(artifact.version, safe='.-')}?file_name={quote(artifact.file, safe='.-')}"


def cyclonedx(lock: Lock, image: Digest, licences: Mapping[str, str]) -> bytes:
    """The CycloneDX 1.6 document of the image with digest ``image`` that ``lock`` became.

    licences: ``wheel:<name>`` and ``deb:<name>`` -> expression or words. Order and form are those of the CycloneDX
    library, which is no part of a build: to load and use it took a third of a second of each (decision 10).
    """
    licensing = Licensing()
    whole = {**_component("container", lock.name, lock.version, str(image)), "hashes": _hashes(image)}
    packages = [
        _library(artifact, lock.suite, licences.get(_key(artifact), ""), licensing) for artifact in _artifacts(lock)
    ]
    system = [_component("operating-system", "debian", lock.suite, f"debian-{lock.suite}")] if lock.suite else []
    refs = sorted(each["bom-ref"] for each in packages)
    dependencies = [{"ref": ref} for ref in (*refs, *(each["bom-ref"] for each in system))]
    return _json(
        {
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            # Every SBOM of one image is the same document, so it has the same number.
            "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'urn:envbuilder:{image}')}",
            "metadata": {
                "timestamp": _TIME.isoformat(),
                "component": whole,
                "tools": {"components": [_component("application", "envbuilder", __version__)]},
            },
            "components": sorted(packages, key=lambda each: (each["name"], each["version"], each["bom-ref"])) + system,
            "dependencies": sorted(
                [*dependencies, {"ref": str(image), **({"dependsOn": refs} if refs else {})}],
                key=lambda each: str(each["ref"]),
            ),
        }
    )


def _component(kind: str, name: str, version: str, ref: str = "") -> dict[str, Any]:
    return {"type": kind, "name": name, "version": version, **({"bom-ref": ref} if ref else {})}


def _library(artifact: Artifact, suite: str, words: str, licensing: Licensing) -> dict[str, Any]:
    url = package_url(artifact, suite)
    found: dict[str, Any] = {}
    if licensing.is_expression(words):
        found = {"licenses": [{"expression": licensing.normal(words)}]}
    elif words:
        found = {"licenses": [{"license": {"name": words}}]}
    return {
        **_component("library", artifact.name, artifact.version, url),
        "purl": url.replace("+", "%2B").replace("%3A", ":"),  # its canonical form
        "hashes": _hashes(artifact.digest),
        "properties": [{"name": media_types.LAYER_ID, "value": artifact.layer}],
        **found,
    }


def _hashes(digest: Digest) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": digest.hex}]


def spdx(lock: Lock, image: Digest, licences: Mapping[str, str]) -> bytes:
    """The SPDX 2.3 document of the image with digest ``image`` that ``lock`` became; ``licences`` as above."""
    licensing = Licensing()
    refs = {words: _licence_ref(words) for words in words_of(licences, licensing)}
    root = "SPDXRef-image"
    packages: list[dict[str, Any]] = [
        {
            **_package(root, lock.name, lock.version, image, "CONTAINER"),
            "packageFileName": f"{lock.name}-{lock.version}",
        }
    ]
    relations = [_relation("SPDXRef-DOCUMENT", "DESCRIBES", root)]
    for artifact in _artifacts(lock):
        kind = "deb" if isinstance(artifact, Deb) else "wheel"
        name = f"SPDXRef-{kind}-{_id(artifact.name)}"
        words = licences.get(_key(artifact), "")
        declared = refs.get(words) or (licensing.normal(words) if words else _NOTHING)
        packages.append(
            {
                **_package(name, artifact.name, artifact.version, artifact.digest, "LIBRARY"),
                "licenseDeclared": declared,
                "packageFileName": artifact.file.rpartition("/")[2],
                "externalRefs": [
                    {
                        "referenceCategory": "PACKAGE-MANAGER",
                        "referenceType": "purl",
                        "referenceLocator": package_url(artifact, lock.suite),
                    }
                ],
            }
        )
        relations.append(_relation(root, "CONTAINS", name))
    value: dict[str, Any] = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{lock.name}-{lock.version}",
        "documentNamespace": f"urn:envbuilder:spdx:{image.hex}",
        "creationInfo": {
            "created": _TIME.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": [f"Tool: envbuilder-{__version__}"],
        },
        "packages": packages,
        "relationships": relations,
    }
    if refs:
        value["hasExtractedLicensingInfos"] = [
            {"licenseId": ref, "name": words, "extractedText": words} for words, ref in sorted(refs.items())
        ]
    return _json(value)


def _artifacts(lock: Lock) -> Sequence[Artifact]:
    return (*lock.debs, *lock.wheels)


def _key(artifact: Artifact) -> str:
    return f"{'deb' if isinstance(artifact, Deb) else 'wheel'}:{artifact.name}"


def _package(name: str, title: str, version: str, digest: Digest, purpose: str) -> dict[str, Any]:
    return {
        "SPDXID": name,
        "name": title,
        "versionInfo": version,
        "downloadLocation": _NOTHING,
        "filesAnalyzed": False,
        "licenseConcluded": _NOTHING,
        "licenseDeclared": _NOTHING,
        "copyrightText": _NOTHING,
        "primaryPackagePurpose": purpose,
        "checksums": [{"algorithm": "SHA256", "checksumValue": digest.hex}],
    }


def _relation(one: str, kind: str, two: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": two}


def _id(name: str) -> str:
    return name.replace("+", ".plus")


def _licence_ref(words: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9.-]+", "-", words).strip("-")[:40]
    return f"LicenseRef-{stem}-{hashlib.sha256(words.encode()).hexdigest()[:8]}"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()

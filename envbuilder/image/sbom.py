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

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from envbuilder import __version__
from envbuilder.digest import Digest
from envbuilder.image.base_packages import BasePackage
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


def _base_url(package: BasePackage, system: str) -> str:
    """The purl of a package that a base of others has."""
    version = quote(package.version, safe="~+.-")
    if package.kind == "wheel":
        return f"pkg:pypi/{package.name}@{version}"
    vendor = quote(system.partition("-")[0], safe="")
    arch = quote(package.architecture, safe="")
    return f"pkg:deb/{vendor}/{quote(package.name, safe='+.-')}@{version}?arch={arch}&distro={system}"


def cyclonedx(lock: Lock, image: Digest, licences: Mapping[str, str], theirs: Sequence[BasePackage] = ()) -> bytes:
    """The CycloneDX 1.6 document of the image with digest ``image`` that ``lock`` became.

    licences: ``wheel:<name>`` and ``deb:<name>`` -> expression or words. theirs: what a base of others has.
    """
    licensing = Licensing()
    whole = Component(
        type=ComponentType.CONTAINER,
        name=lock.name,
        version=lock.version,
        bom_ref=str(image),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=image.hex)],
    )
    components = []
    for artifact in _artifacts(lock):
        url = package_url(artifact, lock.suite)
        found = _licences(licences.get(_key(artifact), ""), licensing)
        components.append(
            Component(
                type=ComponentType.LIBRARY,
                name=artifact.name,
                version=artifact.version,
                bom_ref=url,
                purl=PackageURL.from_string(url),
                licenses=found,
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=artifact.digest.hex)],
                properties=[Property(name=media_types.LAYER_ID, value=artifact.layer)],
            )
        )
    components += [
        Component(
            type=ComponentType.LIBRARY,
            name=each.name,
            version=each.version,
            bom_ref=f"base:{_base_url(each, system_name(lock))}",
            purl=PackageURL.from_string(_base_url(each, system_name(lock))),
            licenses=_licences(licences.get(f"{each.kind}:{each.name}", "") if each.kind == "deb" else "", licensing),
            properties=[Property(name=media_types.LAYER_ID, value=f"{lock.name}/base")],
        )
        for each in theirs
    ]
    name, _, version = system_name(lock).partition("-")
    system = Component(type=ComponentType.OPERATING_SYSTEM, name=name, version=version, bom_ref=system_name(lock))
    bom = Bom(
        # Every SBOM of one image is the same document, so it has the same number.
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"urn:envbuilder:{image}"),
        metadata=BomMetaData(
            timestamp=_TIME,
            component=whole,
            tools=ToolRepository(
                components=[Component(type=ComponentType.APPLICATION, name="envbuilder", version=__version__)]
            ),
        ),
        components=[*components, *([system] if system_name(lock) else [])],
    )
    bom.dependencies = [
        Dependency(ref=whole.bom_ref, dependencies=[Dependency(ref=each.bom_ref) for each in components])
    ]
    document: str = JsonV1Dot6(bom).output_as_string()
    return _json(json.loads(document))


def system_name(lock: Lock) -> str:
    """What the image is made of: ``debian-trixie``, or what a base of others calls itself; "" if nothing is known."""
    return f"debian-{lock.suite}" if lock.suite else lock.system.name if lock.system else ""


def _licences(words: str, licensing: Licensing) -> list[DisjunctiveLicense | LicenseExpression]:
    if licensing.is_expression(words):
        return [LicenseExpression(licensing.normal(words))]
    return [DisjunctiveLicense(name=words)] if words else []


def spdx(lock: Lock, image: Digest, licences: Mapping[str, str], theirs: Sequence[BasePackage] = ()) -> bytes:
    """The SPDX 2.3 document of the image with digest ``image`` that ``lock`` became; other arguments as above."""
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
                "externalRefs": [_purl(package_url(artifact, lock.suite))],
            }
        )
        relations.append(_relation(root, "CONTAINS", name))
    for number, each in enumerate(theirs):
        name = f"SPDXRef-base-{number}-{_id(each.name)}"
        words = licences.get(f"deb:{each.name}", "") if each.kind == "deb" else ""
        declared = refs.get(words) or (licensing.normal(words) if words else _NOTHING)
        packages.append(
            {
                **_package(name, each.name, each.version, None, "LIBRARY"),
                "licenseDeclared": declared,
                "externalRefs": [_purl(_base_url(each, system_name(lock)))],
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


def _purl(url: str) -> dict[str, str]:
    return {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": url}


def _package(name: str, title: str, version: str, digest: Digest | None, purpose: str) -> dict[str, Any]:
    checksums = {"checksums": [{"algorithm": "SHA256", "checksumValue": digest.hex}]} if digest else {}
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
        **checksums,
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

"""Our CycloneDX documents against those that the CycloneDX library makes."""

import json
import uuid
from dataclasses import replace
from datetime import datetime, timezone

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
from envbuilder.image.sbom import cyclonedx, package_url
from envbuilder.oci import media_types
from envbuilder.testing.locks import SMALL, deb, wheel

IMAGE = Digest.of(b"image")
LICENCES = {
    "wheel:a": "MIT OR Apache-2.0",
    "wheel:attr": "as the author says",
    "deb:libstdc++6": "GPL-3.0-only WITH GCC-exception-3.1",
}


def by_library(lock):
    def hashes(digest):
        return [HashType(alg=HashAlgorithm.SHA_256, content=digest.hex)]

    def licence(words):
        return [DisjunctiveLicense(name=words) if words.startswith("as") else LicenseExpression(words)] if words else []

    whole = Component(
        type=ComponentType.CONTAINER, name=lock.name, version=lock.version, bom_ref=str(IMAGE), hashes=hashes(IMAGE)
    )
    packages = [
        Component(
            type=ComponentType.LIBRARY,
            name=each.name,
            version=each.version,
            bom_ref=package_url(each, lock.suite),
            purl=PackageURL.from_string(package_url(each, lock.suite)),
            licenses=licence(LICENCES.get(f"{'deb' if each in lock.debs else 'wheel'}:{each.name}", "")),
            hashes=hashes(each.digest),
            properties=[Property(name=media_types.LAYER_ID, value=each.layer)],
        )
        for each in (*lock.debs, *lock.wheels)
    ]
    system = [
        Component(type=ComponentType.OPERATING_SYSTEM, name="debian", version=lock.suite, bom_ref="debian-trixie")
    ]
    tool = Component(type=ComponentType.APPLICATION, name="envbuilder", version=__version__)
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"urn:envbuilder:{IMAGE}"),
        metadata=BomMetaData(
            timestamp=datetime.fromtimestamp(1, timezone.utc), component=whole, tools=ToolRepository(components=[tool])
        ),
        components=[*packages, *(system if lock.suite else [])],
    )
    bom.dependencies = [Dependency(ref=whole.bom_ref, dependencies=[Dependency(ref=each.bom_ref) for each in packages])]
    return json.loads(JsonV1Dot6(bom).output_as_string())


def test_a_document_is_what_the_cyclonedx_library_makes_of_the_same_packages():
    debs = (deb("zlib1g", "1:1.3.dfsg+really1.3.1-1+b1"), deb("libstdc++6", "14.2.0-19~rc1"), deb("attr"))
    wheels = (wheel("a", "2!1.0+cu129"), wheel("attr", "1.0rc1"))
    lock = replace(SMALL, suite="trixie", debs=debs, wheels=wheels)

    assert json.loads(cyclonedx(lock, IMAGE, LICENCES)) == by_library(lock)


def test_so_is_that_of_an_image_without_a_debian_package():
    lock = replace(SMALL, suite="", debs=(), wheels=(wheel("a"),))

    assert json.loads(cyclonedx(lock, IMAGE, LICENCES)) == by_library(lock)

"""What we write is what the JSON schemas of OCI image-spec 1.1 describe."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft4Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT4

from envbuilder.digest import Digest
from envbuilder.image.assemble import assemble
from envbuilder.layer.tree import file
from envbuilder.oci import media_types
from envbuilder.oci.platform import Platform
from envbuilder.testing.layers import layer_of

SCHEMAS = Path(__file__).parent / "schemas"
NAMES = {
    media_types.OCI_INDEX: "image-index-schema.json",
    media_types.OCI_MANIFEST: "image-manifest-schema.json",
    media_types.OCI_CONFIG: "config-schema.json",
}


def validator(name):
    """The schemas name each other by file; their ids are URLs of which the last part is not always the file."""
    resources = {
        path.name: Resource(contents=json.loads(path.read_text()), specification=DRAFT4)
        for path in SCHEMAS.glob("*.json")
    }
    pairs = [(prefix + file_name, resource) for file_name, resource in resources.items() for prefix in ("", "https://opencontainers.org/schema/", "https://opencontainers.org/schema/image/", "https://opencontainers.org/schema/descriptor/")]  # fmt: skip
    return Draft4Validator(resources[name].contents, registry=Registry().with_resources(pairs))


def documents():
    layers = [layer_of([file("a", b"1")], name="x/base").layer, layer_of([file("b", b"2")], name="x/top").layer]
    image = assemble(
        platform=Platform("x86_64"),
        layers=layers,
        env={"PATH": "/usr/bin"},
        command=("sh",),
        entrypoint=("init",),
        user="1000:1000",
        labels={"a": "b"},
        lock_digest=Digest.of(b""),
    )
    return [(what.media_type, data) for what, data in image.blobs.items() if what.media_type in NAMES]


@pytest.mark.parametrize(("media_type", "data"), documents(), ids=lambda value: value if isinstance(value, str) else "")
def test_documents_are_what_the_schemas_describe(media_type, data):
    errors = list(validator(NAMES[media_type]).iter_errors(json.loads(data)))

    assert errors == []


def test_the_schemas_are_really_followed():
    bad = {
        "schemaVersion": 2,
        "config": {"mediaType": "x"},
        "layers": [{"mediaType": "x", "size": "1", "digest": "no"}],
    }

    assert len(list(validator("image-manifest-schema.json").iter_errors(bad))) >= 2


def test_every_document_of_the_real_image_is_what_the_schemas_describe(hello):
    index = {"mediaType": media_types.OCI_INDEX, "digest": hello.digest}
    manifests = hello.index["manifests"]
    configs = [hello.plain["config"], hello.erofs["config"]]

    errors = [
        f"{what['digest']}: {error.message}"
        for what in (index, *manifests, *configs)
        for error in validator(NAMES[what["mediaType"]]).iter_errors(
            json.loads(hello.blob(what["digest"]).read_bytes())
        )
    ]

    assert errors == []
    layout = json.loads((hello.store / "oci-layout").read_bytes())
    assert list(validator("image-layout-schema.json").iter_errors(layout)) == []
    assert (
        list(validator(NAMES[media_types.OCI_INDEX]).iter_errors(json.loads((hello.store / "index.json").read_bytes())))
        == []
    )
